-- How many customers bought an item only in stores, only by catalog, and in both.
WITH stores AS (
    SELECT ss_customer_sk AS customer, ss_item_sk AS item
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1193 AND 1204
    GROUP BY ss_customer_sk, ss_item_sk
), catalogs AS (
    SELECT cs_bill_customer_sk AS customer, cs_item_sk AS item
    FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_month_seq BETWEEN 1193 AND 1204
    GROUP BY cs_bill_customer_sk, cs_item_sk
)
SELECT TRANSACTIONALLY
    sum(CASE WHEN s.customer IS NOT NULL AND c.customer IS NULL THEN 1 ELSE 0 END) AS only_stores,
    sum(CASE WHEN s.customer IS NULL AND c.customer IS NOT NULL THEN 1 ELSE 0 END) AS only_catalogs,
    sum(CASE WHEN s.customer IS NOT NULL AND c.customer IS NOT NULL THEN 1 ELSE 0 END) AS both
FROM stores AS s
FULL JOIN catalogs AS c ON c.customer = s.customer AND c.item = s.item
LIMIT 100;

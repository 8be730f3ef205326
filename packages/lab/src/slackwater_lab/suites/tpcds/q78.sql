-- What customers bought of an item in the store, next to what they bought elsewhere, where nothing came back.
WITH ws AS (
    SELECT d_year AS in_year, ws_item_sk AS item, ws_bill_customer_sk AS customer, sum(ws_quantity) AS pieces,
        sum(ws_wholesale_cost) AS cost, sum(ws_sales_price) AS price
    FROM web_sales
    LEFT JOIN web_returns ON wr_order_number = ws_order_number AND wr_item_sk = ws_item_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE wr_order_number IS NULL
    GROUP BY d_year, ws_item_sk, ws_bill_customer_sk
), cs AS (
    SELECT d_year AS in_year, cs_item_sk AS item, cs_bill_customer_sk AS customer, sum(cs_quantity) AS pieces,
        sum(cs_wholesale_cost) AS cost, sum(cs_sales_price) AS price
    FROM catalog_sales
    LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE cr_order_number IS NULL
    GROUP BY d_year, cs_item_sk, cs_bill_customer_sk
), ss AS (
    SELECT d_year AS in_year, ss_item_sk AS item, ss_customer_sk AS customer, sum(ss_quantity) AS pieces,
        sum(ss_wholesale_cost) AS cost, sum(ss_sales_price) AS price
    FROM store_sales
    LEFT JOIN store_returns ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE sr_ticket_number IS NULL
    GROUP BY d_year, ss_item_sk, ss_customer_sk
)
SELECT TRANSACTIONALLY
    ss.in_year, ss.item, ss.customer,
    round(ss.pieces * 1.00 / nullif(coalesce(ws.pieces, 0) + coalesce(cs.pieces, 0), 0), 2) AS ratio,
    ss.pieces AS store_pieces, ss.cost AS store_cost, ss.price AS store_price,
    coalesce(ws.pieces, 0) + coalesce(cs.pieces, 0) AS other_pieces, coalesce(ws.cost, 0) + coalesce(cs.cost, 0) AS other_cost,
    coalesce(ws.price, 0) + coalesce(cs.price, 0) AS other_price
FROM ss
LEFT JOIN ws ON ws.in_year = ss.in_year AND ws.item = ss.item AND ws.customer = ss.customer
LEFT JOIN cs ON cs.in_year = ss.in_year AND cs.item = ss.item AND cs.customer = ss.customer
WHERE (coalesce(ws.pieces, 0) > 0 OR coalesce(cs.pieces, 0) > 0) AND ss.in_year = 2001
ORDER BY ss.in_year, ss.item, ss.customer, ss.pieces DESC NULLS LAST, ss.cost DESC NULLS LAST, other_pieces
LIMIT 100;

-- How many customers bought in the store, by catalog and on the web on the same day.
SELECT TRANSACTIONALLY count(*) AS number
FROM (
    SELECT c_last_name, c_first_name, d_date
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    WHERE d_month_seq BETWEEN 1190 AND 1201
    INTERSECT
    SELECT c_last_name, c_first_name, d_date
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN customer ON c_customer_sk = cs_bill_customer_sk
    WHERE d_month_seq BETWEEN 1190 AND 1201
    INTERSECT
    SELECT c_last_name, c_first_name, d_date
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer ON c_customer_sk = ws_bill_customer_sk
    WHERE d_month_seq BETWEEN 1190 AND 1201
) AS everywhere
LIMIT 100;

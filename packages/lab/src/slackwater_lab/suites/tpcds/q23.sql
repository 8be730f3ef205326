-- What the best customers of the stores spent by catalog and on the web for items that sell often.
WITH often AS (
    SELECT substring(i_item_desc FROM 1 FOR 30) AS words, i_item_sk AS item, d_date AS day, count(*) AS times
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE d_year IN (2000, 2001, 2002, 2003)
    GROUP BY substring(i_item_desc FROM 1 FOR 30), i_item_sk, d_date
    HAVING count(*) > 1
), most AS (
    SELECT max(spent) AS spent
    FROM (
        SELECT c_customer_sk, sum(ss_quantity * ss_sales_price) AS spent
        FROM store_sales
        JOIN customer ON c_customer_sk = ss_customer_sk
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_year IN (2000, 2001, 2002, 2003)
        GROUP BY c_customer_sk
    ) AS each
), best AS (
    SELECT c_customer_sk AS customer, sum(ss_quantity * ss_sales_price) AS spent
    FROM store_sales
    JOIN customer ON c_customer_sk = ss_customer_sk
    GROUP BY c_customer_sk
    HAVING sum(ss_quantity * ss_sales_price) > 0.4 * (SELECT spent FROM most)
)
SELECT TRANSACTIONALLY c_last_name, c_first_name, sales
FROM (
    SELECT c_last_name, c_first_name, sum(cs_quantity * cs_list_price) AS sales
    FROM catalog_sales
    JOIN customer ON c_customer_sk = cs_bill_customer_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_year = 2001 AND d_moy = 4 AND cs_item_sk IN (SELECT item FROM often)
        AND cs_bill_customer_sk IN (SELECT customer FROM best)
    GROUP BY c_last_name, c_first_name
    UNION ALL
    SELECT c_last_name, c_first_name, sum(ws_quantity * ws_list_price)
    FROM web_sales
    JOIN customer ON c_customer_sk = ws_bill_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_year = 2001 AND d_moy = 4 AND ws_item_sk IN (SELECT item FROM often)
        AND ws_bill_customer_sk IN (SELECT customer FROM best)
    GROUP BY c_last_name, c_first_name
) AS bought
ORDER BY c_last_name, c_first_name, sales
LIMIT 100;

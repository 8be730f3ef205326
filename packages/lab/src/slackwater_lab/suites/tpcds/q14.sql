-- Brands that all channels sell: their sales of a month above the mean, by channel, brand, class, category and in sum.
WITH everywhere AS (
    SELECT i_item_sk AS item
    FROM item
    JOIN (
        SELECT i.i_brand_id AS brand, i.i_class_id AS class, i.i_category_id AS category
        FROM store_sales JOIN item AS i ON i.i_item_sk = ss_item_sk JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 2001
        INTERSECT
        SELECT i.i_brand_id, i.i_class_id, i.i_category_id
        FROM catalog_sales JOIN item AS i ON i.i_item_sk = cs_item_sk JOIN date_dim ON d_date_sk = cs_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 2001
        INTERSECT
        SELECT i.i_brand_id, i.i_class_id, i.i_category_id
        FROM web_sales JOIN item AS i ON i.i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 2001
    ) AS kinds ON i_brand_id = brand AND i_class_id = class AND i_category_id = category
), mean AS (
    SELECT avg(quantity * price) AS sales
    FROM (
        SELECT ss_quantity AS quantity, ss_list_price AS price
        FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk WHERE d_year BETWEEN 1999 AND 2001
        UNION ALL
        SELECT cs_quantity, cs_list_price
        FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk WHERE d_year BETWEEN 1999 AND 2001
        UNION ALL
        SELECT ws_quantity, ws_list_price
        FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk WHERE d_year BETWEEN 1999 AND 2001
    ) AS sold
)
SELECT TRANSACTIONALLY channel, brand, class, category, sum(sales) AS sales, sum(number) AS number
FROM (
    SELECT 'store' AS channel, i_brand_id AS brand, i_class_id AS class, i_category_id AS category,
        sum(ss_quantity * ss_list_price) AS sales, count(*) AS number
    FROM store_sales JOIN item ON i_item_sk = ss_item_sk JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE ss_item_sk IN (SELECT item FROM everywhere) AND d_year = 2001 AND d_moy = 10
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ss_quantity * ss_list_price) > (SELECT sales FROM mean)
    UNION ALL
    SELECT 'catalog', i_brand_id, i_class_id, i_category_id, sum(cs_quantity * cs_list_price), count(*)
    FROM catalog_sales JOIN item ON i_item_sk = cs_item_sk JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE cs_item_sk IN (SELECT item FROM everywhere) AND d_year = 2001 AND d_moy = 10
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(cs_quantity * cs_list_price) > (SELECT sales FROM mean)
    UNION ALL
    SELECT 'web', i_brand_id, i_class_id, i_category_id, sum(ws_quantity * ws_list_price), count(*)
    FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE ws_item_sk IN (SELECT item FROM everywhere) AND d_year = 2001 AND d_moy = 10
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ws_quantity * ws_list_price) > (SELECT sales FROM mean)
) AS channels
GROUP BY ROLLUP (channel, brand, class, category)
ORDER BY channel, brand, class, category
LIMIT 100;

-- Catalog revenue of items and their part of the revenue of their class.
SELECT TRANSACTIONALLY
    i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(cs_ext_sales_price) AS revenue,
    sum(cs_ext_sales_price) * 100.0 / sum(sum(cs_ext_sales_price)) OVER (PARTITION BY i_class) AS share
FROM catalog_sales
JOIN item ON i_item_sk = cs_item_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE i_category IN ('Jewelry', 'Men', 'Toys') AND d_date BETWEEN DATE '2001-06-01' AND DATE '2001-07-01'
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, share, i_current_price
LIMIT 4;

-- Sales of a manager's categories in a month.
SELECT TRANSACTIONALLY d_year, i_category_id, i_category, sum(ss_ext_sales_price) AS sales
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manager_id = 3 AND d_moy = 12 AND d_year = 2001
GROUP BY d_year, i_category_id, i_category
ORDER BY sum(ss_ext_sales_price) DESC NULLS LAST, d_year, i_category_id, i_category
LIMIT 2;

-- Store revenue of items and their part of the revenue of their class.
SELECT TRANSACTIONALLY
    i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ss_ext_sales_price) AS revenue,
    sum(ss_ext_sales_price) * 100.0 / sum(sum(ss_ext_sales_price)) OVER (PARTITION BY i_class) AS share
FROM store_sales, item, date_dim
WHERE ss_item_sk = i_item_sk AND i_category IN ('Electronics', 'Women', 'Children') AND ss_sold_date_sk = d_date_sk
    AND d_date BETWEEN DATE '2001-05-25' AND DATE '2001-06-24'
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, share;

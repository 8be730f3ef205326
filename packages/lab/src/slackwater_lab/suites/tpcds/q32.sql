-- Excess discounts of a manufacturer's items by catalog: those a third above the mean of the item.
SELECT TRANSACTIONALLY sum(cs_ext_discount_amt) AS "excess discount amount"
FROM catalog_sales
JOIN item ON i_item_sk = cs_item_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE i_manufact_id = 610 AND d_date BETWEEN DATE '2001-03-03' AND DATE '2001-06-01'
    AND cs_ext_discount_amt > (
        SELECT 1.3 * avg(o.cs_ext_discount_amt)
        FROM catalog_sales AS o
        JOIN date_dim AS d ON d.d_date_sk = o.cs_sold_date_sk
        WHERE o.cs_item_sk = i_item_sk AND d.d_date BETWEEN DATE '2001-03-03' AND DATE '2001-06-01'
    )
LIMIT 100;

-- Kinds of items of a category that sold a tenth less than the year before, returns left out, over all channels.
WITH yearly AS (
    SELECT in_year, brand, class, category, manufacturer, sum(pieces) AS pieces, sum(amount) AS amount
    FROM (
        SELECT d_year AS in_year, i_brand_id AS brand, i_class_id AS class, i_category_id AS category,
            i_manufact_id AS manufacturer, cs_quantity - coalesce(cr_return_quantity, 0) AS pieces,
            cs_ext_sales_price - coalesce(cr_return_amount, 0.0) AS amount
        FROM catalog_sales
        JOIN item ON i_item_sk = cs_item_sk
        JOIN date_dim ON d_date_sk = cs_sold_date_sk
        LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
        WHERE i_category = 'Garden'
        UNION
        SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id, ss_quantity - coalesce(sr_return_quantity, 0),
            ss_ext_sales_price - coalesce(sr_return_amt, 0.0)
        FROM store_sales
        JOIN item ON i_item_sk = ss_item_sk
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        LEFT JOIN store_returns ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk
        WHERE i_category = 'Garden'
        UNION
        SELECT d_year, i_brand_id, i_class_id, i_category_id, i_manufact_id, ws_quantity - coalesce(wr_return_quantity, 0),
            ws_ext_sales_price - coalesce(wr_return_amt, 0.0)
        FROM web_sales
        JOIN item ON i_item_sk = ws_item_sk
        JOIN date_dim ON d_date_sk = ws_sold_date_sk
        LEFT JOIN web_returns ON wr_order_number = ws_order_number AND wr_item_sk = ws_item_sk
        WHERE i_category = 'Garden'
    ) AS sold
    GROUP BY in_year, brand, class, category, manufacturer
)
SELECT TRANSACTIONALLY
    old.in_year AS year_before, new.in_year, new.brand, new.class, new.category, new.manufacturer, old.pieces AS pieces_before,
    new.pieces, new.pieces - old.pieces AS more_pieces, new.amount - old.amount AS more
FROM yearly AS new
JOIN yearly AS old
    ON old.brand = new.brand AND old.class = new.class AND old.category = new.category AND old.manufacturer = new.manufacturer
WHERE new.in_year = 2001 AND old.in_year = 2000
    AND CAST(new.pieces AS numeric(17, 2)) / nullif(CAST(old.pieces AS numeric(17, 2)), 0) < 0.9
ORDER BY more_pieces, more, new.brand, new.class, new.category, new.manufacturer
LIMIT 100;

-- The part of a category's sales that came from promotions, in a month and time zone.
SELECT TRANSACTIONALLY
    promoted, total, CAST(promoted AS numeric(15, 4)) / nullif(CAST(total AS numeric(15, 4)), 0) * 100 AS share
FROM (
    SELECT sum(ss_ext_sales_price) AS promoted
    FROM store_sales
    JOIN store ON s_store_sk = ss_store_sk
    JOIN promotion ON p_promo_sk = ss_promo_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE ca_gmt_offset = -7 AND i_category = 'Books' AND (p_channel_dmail = 'Y' OR p_channel_email = 'Y' OR p_channel_tv = 'Y')
        AND s_gmt_offset = -7 AND d_year = 2001 AND d_moy = 12
) AS promotions, (
    SELECT sum(ss_ext_sales_price) AS total
    FROM store_sales
    JOIN store ON s_store_sk = ss_store_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN customer_address ON ca_address_sk = c_current_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE ca_gmt_offset = -7 AND i_category = 'Books' AND s_gmt_offset = -7 AND d_year = 2001 AND d_moy = 12
) AS everything
ORDER BY promoted, total
LIMIT 100;

-- Items that were bought in two years by households who moved, and whose catalog sales are twice the refunds.
WITH refunds AS (
    SELECT cs_item_sk AS item, sum(cs_ext_list_price) AS sales
    FROM catalog_sales
    JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
    GROUP BY cs_item_sk
    HAVING sum(cs_ext_list_price) > 0.1 * sum(cr_refunded_cash + cr_reversed_charge + cr_store_credit)
), sold AS (
    SELECT
        i_product_name AS product, i_item_sk AS item, s_store_name AS store_name, s_zip AS store_zip,
        a1.ca_street_number AS from_number, a1.ca_street_name AS from_street, a1.ca_city AS from_city, a1.ca_zip AS from_zip,
        a2.ca_street_number AS to_number, a2.ca_street_name AS to_street, a2.ca_city AS to_city, a2.ca_zip AS to_zip,
        d1.d_year AS in_year, d2.d_year AS first_sold, d3.d_year AS first_sent,
        count(*) AS times, sum(ss_wholesale_cost) AS cost, sum(ss_list_price) AS price, sum(ss_coupon_amt) AS coupons
    FROM store_sales
    JOIN store_returns ON sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
    JOIN refunds ON refunds.item = ss_item_sk
    JOIN date_dim AS d1 ON d1.d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN customer ON c_customer_sk = ss_customer_sk
    JOIN date_dim AS d2 ON d2.d_date_sk = c_first_sales_date_sk
    JOIN date_dim AS d3 ON d3.d_date_sk = c_first_shipto_date_sk
    JOIN customer_demographics AS cd1 ON cd1.cd_demo_sk = ss_cdemo_sk
    JOIN customer_demographics AS cd2 ON cd2.cd_demo_sk = c_current_cdemo_sk AND cd2.cd_marital_status <> cd1.cd_marital_status
    JOIN promotion ON p_promo_sk = ss_promo_sk
    JOIN household_demographics AS hd1 ON hd1.hd_demo_sk = ss_hdemo_sk
    JOIN household_demographics AS hd2 ON hd2.hd_demo_sk = c_current_hdemo_sk
    JOIN customer_address AS a1 ON a1.ca_address_sk = ss_addr_sk
    JOIN customer_address AS a2 ON a2.ca_address_sk = c_current_addr_sk
    JOIN income_band AS i1 ON i1.ib_income_band_sk = hd1.hd_income_band_sk
    JOIN income_band AS i2 ON i2.ib_income_band_sk = hd2.hd_income_band_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE i_color IN ('thistle', 'sienna', 'maroon') AND i_current_price BETWEEN 20 AND 30 AND i_current_price BETWEEN 21 AND 35
    GROUP BY i_product_name, i_item_sk, s_store_name, s_zip, a1.ca_street_number, a1.ca_street_name, a1.ca_city, a1.ca_zip,
        a2.ca_street_number, a2.ca_street_name, a2.ca_city, a2.ca_zip, d1.d_year, d2.d_year, d3.d_year
)
SELECT TRANSACTIONALLY
    x.product, x.store_name, x.store_zip, x.from_number, x.from_street, x.from_city, x.from_zip, x.to_number, x.to_street,
    x.to_city, x.to_zip, x.in_year, x.times, x.cost, x.price, x.coupons, y.cost AS cost_later, y.price AS price_later,
    y.coupons AS coupons_later, y.in_year AS year_later, y.times AS times_later
FROM sold AS x
JOIN sold AS y ON y.item = x.item AND y.store_name = x.store_name AND y.store_zip = x.store_zip AND y.times <= x.times
WHERE x.in_year = 2000 AND y.in_year = 2001
ORDER BY x.product, x.store_name, times_later, x.cost, cost_later;

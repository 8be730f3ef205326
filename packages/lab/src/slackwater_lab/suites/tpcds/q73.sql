-- Customers with small tickets on the first days of a month, of households with cars.
SELECT TRANSACTIONALLY c_last_name, c_first_name, c_salutation, c_preferred_cust_flag, ticket, lines
FROM (
    SELECT ss_ticket_number AS ticket, ss_customer_sk AS customer, count(*) AS lines
    FROM store_sales, date_dim, store, household_demographics
    WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND ss_hdemo_sk = hd_demo_sk
        AND d_dom BETWEEN 1 AND 2 AND (hd_buy_potential = '5001-10000' OR hd_buy_potential = 'Unknown')
        AND hd_vehicle_count > 0 AND CASE WHEN hd_vehicle_count > 0 THEN hd_dep_count * 1.0 / hd_vehicle_count END > 1
        AND d_year IN (1999, 2000, 2001) AND s_county IN ('Bronx County', 'Levy County')
    GROUP BY ss_ticket_number, ss_customer_sk
) AS tickets
JOIN customer ON c_customer_sk = customer
WHERE lines BETWEEN 1 AND 5
ORDER BY lines DESC, c_last_name, ticket, c_first_name;

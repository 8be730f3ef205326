-- Average selling price of a seller: over the last ten auctions that were won.
SELECT TRANSACTIONALLY
    seller, id, avg(price) OVER (PARTITION BY seller ORDER BY date_time, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS mean
FROM (
    SELECT a.id, a.seller, b.price, b.date_time,
        row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time, b.bid_id) AS place
    FROM auction AS a
    JOIN bid AS b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
) AS ranked
WHERE place <= 1;

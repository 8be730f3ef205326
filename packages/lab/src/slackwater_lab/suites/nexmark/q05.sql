-- Hot items: auctions with the most bids in each window of ten seconds, which hops by two.
WITH counted AS (
    SELECT b.auction, w.begins, count(*) AS bids
    FROM bid AS b, generate_series(
        date_trunc('minute', b.date_time), date_trunc('minute', b.date_time) + INTERVAL '58 seconds', INTERVAL '2 seconds'
    ) AS w(begins)
    WHERE b.date_time >= w.begins AND b.date_time < w.begins + INTERVAL '10 seconds'
    GROUP BY b.auction, w.begins
)
SELECT TRANSACTIONALLY c.auction, c.bids, c.begins
FROM counted AS c
JOIN (SELECT begins, max(bids) AS most FROM counted GROUP BY begins) AS m ON m.begins = c.begins AND m.most <= c.bids;

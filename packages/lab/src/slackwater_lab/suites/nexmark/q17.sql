-- Auction statistics: bids of each auction and day.
SELECT TRANSACTIONALLY
    auction, CAST(date_time AS date) AS day, count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    count(*) FILTER (WHERE price >= 1000000) AS high_bids,
    min(price) AS least, max(price) AS most, avg(price) AS mean, sum(price) AS total
FROM bid
GROUP BY auction, CAST(date_time AS date);

-- Channel statistics: the same by channel, with the last minute of each day.
SELECT TRANSACTIONALLY
    channel, CAST(date_time AS date) AS day, max(date_trunc('minute', date_time)) AS last_minute,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    count(*) FILTER (WHERE price >= 1000000) AS high_bids,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS high_auctions
FROM bid
GROUP BY channel, CAST(date_time AS date);

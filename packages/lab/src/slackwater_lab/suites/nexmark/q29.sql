-- The newest bid of each auction by DISTINCT ON.
SELECT TRANSACTIONALLY DISTINCT ON (auction) auction, bidder, price, date_time
FROM bid
ORDER BY auction, date_time DESC, bid_id DESC;

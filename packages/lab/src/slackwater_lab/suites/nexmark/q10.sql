-- Log to files: bids with their day and minute.
SELECT TRANSACTIONALLY
    auction, bidder, price, date_time, extra, CAST(date_time AS date) AS day, extract(hour FROM date_time) * 60 + extract(minute FROM date_time) AS minute
FROM bid;

-- Channels by number: known ones by name, others by the address of the bid.
SELECT TRANSACTIONALLY
    auction, bidder, price, channel,
    CASE
        WHEN lower(channel) = 'apple' THEN '0'
        WHEN lower(channel) = 'google' THEN '1'
        WHEN lower(channel) = 'facebook' THEN '2'
        WHEN lower(channel) = 'baidu' THEN '3'
        ELSE split_part(split_part(url, 'channel_id=', 2), '&', 1)
    END AS channel_id
FROM bid
WHERE url LIKE '%channel_id=%' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');

-- Currency conversion: prices in euros.
SELECT TRANSACTIONALLY auction, bidder, 0.908 * price AS price, date_time, extra FROM bid;

-- Pass through: every bid as it is.
SELECT TRANSACTIONALLY auction, bidder, price, date_time, extra FROM bid;

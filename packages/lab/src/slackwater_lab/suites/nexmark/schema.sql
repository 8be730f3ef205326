-- Persons who open auctions and bid, as in Nexmark; every bid has a number, and the side input is a table.
CREATE TABLE person (
    id bigint NOT NULL, name varchar(100), email_address varchar(100), credit_card varchar(20), city varchar(50),
    state varchar(10), date_time timestamp(3) NOT NULL, extra varchar(100),
    PRIMARY KEY (id)
);

CREATE TABLE auction (
    id bigint NOT NULL, item_name varchar(100), description varchar(200), initial_bid bigint, reserve bigint,
    date_time timestamp(3) NOT NULL, expires timestamp(3) NOT NULL, seller bigint, category bigint, extra varchar(100),
    PRIMARY KEY (id)
);

CREATE TABLE bid (
    bid_id bigint NOT NULL, auction bigint NOT NULL, bidder bigint NOT NULL, price bigint NOT NULL, channel varchar(20),
    url varchar(200), date_time timestamp(3) NOT NULL, extra varchar(100),
    PRIMARY KEY (bid_id)
);

CREATE TABLE side_input (key bigint NOT NULL, value varchar(50), PRIMARY KEY (key));

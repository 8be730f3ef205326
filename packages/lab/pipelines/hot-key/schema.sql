-- Meters and their readings; one meter has most of them.

CREATE TABLE metering.meters (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    readings int NOT NULL,
    consumed numeric(14, 2) NOT NULL
);

CREATE TABLE metering.readings (
    id bigint PRIMARY KEY,
    meter_id bigint NOT NULL,
    amount numeric(10, 2) NOT NULL
);

-- Readings are joined by their meter: old rows must say which.
ALTER TABLE metering.readings REPLICA IDENTITY FULL;

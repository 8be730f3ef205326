-- Few machines run; sites never change; manuals have no rows.

CREATE TABLE plant.machines (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    runs int NOT NULL,
    output bigint NOT NULL
);

CREATE TABLE plant.runs (
    id bigint PRIMARY KEY,
    machine_id bigint NOT NULL,
    output int NOT NULL
);

CREATE TABLE plant.sites (
    id bigint PRIMARY KEY,
    machine_id bigint NOT NULL,
    place text NOT NULL
);

CREATE TABLE plant.manuals (
    id bigint PRIMARY KEY,
    machine_id bigint NOT NULL,
    title text
);

-- All are joined by their machine: old rows must say which.
ALTER TABLE plant.runs REPLICA IDENTITY FULL;
ALTER TABLE plant.sites REPLICA IDENTITY FULL;
ALTER TABLE plant.manuals REPLICA IDENTITY FULL;

-- A bank: a transfer changes two accounts and leaves an entry in each.

CREATE TABLE bank.accounts (
    id bigint PRIMARY KEY,
    owner text NOT NULL,
    opening numeric(14, 2) NOT NULL,
    balance numeric(14, 2) NOT NULL
);

CREATE TABLE bank.entries (
    id bigint PRIMARY KEY,
    account_id bigint NOT NULL,
    transfer_id bigint NOT NULL,
    amount numeric(14, 2) NOT NULL
);

CREATE TABLE bank.transfers (
    id bigint PRIMARY KEY,
    from_account bigint NOT NULL,
    to_account bigint NOT NULL,
    amount numeric(14, 2) NOT NULL,
    note text
);

-- Entries are joined by their account: old rows must say from which.
ALTER TABLE bank.entries REPLICA IDENTITY FULL;

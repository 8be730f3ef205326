-- The tables of TPC-H, with the primary keys of its specification (clause 1.4).
CREATE TABLE region (r_regionkey integer NOT NULL, r_name varchar(25), r_comment varchar(152), PRIMARY KEY (r_regionkey));

CREATE TABLE nation (
    n_nationkey integer NOT NULL, n_name varchar(25), n_regionkey integer, n_comment varchar(152),
    PRIMARY KEY (n_nationkey)
);

CREATE TABLE supplier (
    s_suppkey integer NOT NULL, s_name varchar(25), s_address varchar(40), s_nationkey integer, s_phone varchar(15),
    s_acctbal numeric(15, 2), s_comment varchar(101),
    PRIMARY KEY (s_suppkey)
);

CREATE TABLE part (
    p_partkey integer NOT NULL, p_name varchar(55), p_mfgr varchar(25), p_brand varchar(10), p_type varchar(25),
    p_size integer, p_container varchar(10), p_retailprice numeric(15, 2), p_comment varchar(23),
    PRIMARY KEY (p_partkey)
);

CREATE TABLE partsupp (
    ps_partkey integer NOT NULL, ps_suppkey integer NOT NULL, ps_availqty integer, ps_supplycost numeric(15, 2),
    ps_comment varchar(199),
    PRIMARY KEY (ps_partkey, ps_suppkey)
);

CREATE TABLE customer (
    c_custkey integer NOT NULL, c_name varchar(25), c_address varchar(40), c_nationkey integer, c_phone varchar(15),
    c_acctbal numeric(15, 2), c_mktsegment varchar(10), c_comment varchar(117),
    PRIMARY KEY (c_custkey)
);

CREATE TABLE orders (
    o_orderkey bigint NOT NULL, o_custkey integer, o_orderstatus varchar(1), o_totalprice numeric(15, 2),
    o_orderdate date, o_orderpriority varchar(15), o_clerk varchar(15), o_shippriority integer, o_comment varchar(79),
    PRIMARY KEY (o_orderkey)
);

CREATE TABLE lineitem (
    l_orderkey bigint NOT NULL, l_partkey integer, l_suppkey integer, l_linenumber integer NOT NULL,
    l_quantity numeric(15, 2), l_extendedprice numeric(15, 2), l_discount numeric(15, 2), l_tax numeric(15, 2),
    l_returnflag varchar(1), l_linestatus varchar(1), l_shipdate date, l_commitdate date, l_receiptdate date,
    l_shipinstruct varchar(25), l_shipmode varchar(10), l_comment varchar(44),
    PRIMARY KEY (l_orderkey, l_linenumber)
);

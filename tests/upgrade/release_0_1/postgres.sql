-- onefold for postgres, versions [1, 2, 3, 4, 5]

BEGIN;

SELECT pg_advisory_xact_lock(6018373285120474113);

CREATE TABLE onefold_migration (version integer NOT NULL PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());

CREATE TABLE onefold_record (
    digest         bytea       NOT NULL PRIMARY KEY,
    fingerprint    bytea       NOT NULL,
    operation      text        NOT NULL,
    schema_version smallint    NOT NULL,
    status         smallint    NOT NULL,
    headers        bytea       NOT NULL,
    body           bytea,
    expires_at     timestamptz NOT NULL
);

CREATE INDEX onefold_record_expires_at ON onefold_record (expires_at);

INSERT INTO onefold_migration (version) VALUES (1);

CREATE TABLE onefold_stream (
    stream  bytea  NOT NULL PRIMARY KEY,
    epoch   bigint NOT NULL,
    version bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE onefold_outbox (
    position     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bucket       smallint    NOT NULL,
    stream       bytea,
    id           text        NOT NULL,
    source       text        NOT NULL,
    topic        text        NOT NULL,
    key          text,
    epoch        bigint,
    version      bigint,
    time         text        NOT NULL,
    content_type text        NOT NULL,
    headers      text        NOT NULL,
    data         bytea       NOT NULL,
    written_at   timestamptz NOT NULL DEFAULT now(),
    due_at       timestamptz,
    started      integer     NOT NULL DEFAULT 0,
    finished     integer     NOT NULL DEFAULT 0,
    error        text,
    published_at timestamptz
);

CREATE INDEX onefold_outbox_ready ON onefold_outbox (bucket, position)
WHERE published_at IS NULL AND due_at IS NULL;

CREATE INDEX onefold_outbox_due ON onefold_outbox (due_at)
WHERE published_at IS NULL AND due_at IS NOT NULL;

CREATE INDEX onefold_outbox_stopped ON onefold_outbox (stream)
WHERE published_at IS NULL AND due_at IS NOT NULL AND stream IS NOT NULL;

CREATE INDEX onefold_outbox_published ON onefold_outbox (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE onefold_relay (
    relay        text        NOT NULL PRIMARY KEY,
    leased_until timestamptz NOT NULL,
    trying       bigint[]    NOT NULL DEFAULT '{}'
);

ALTER TABLE onefold_relay ALTER COLUMN trying SET STORAGE EXTERNAL;

CREATE TABLE onefold_bucket (bucket smallint NOT NULL PRIMARY KEY, relay text);

INSERT INTO onefold_bucket (bucket) SELECT generate_series(0, 63);

INSERT INTO onefold_migration (version) VALUES (2);

CREATE TABLE onefold_inbox (
    consumer   text        NOT NULL,
    message_id text        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX onefold_inbox_handled_at ON onefold_inbox (consumer, handled_at);

CREATE TABLE onefold_progress (
    consumer  text   NOT NULL,
    stream    bytea  NOT NULL,
    epoch     bigint NOT NULL,
    version   bigint NOT NULL,
    settle_at timestamptz,
    PRIMARY KEY (consumer, stream)
) WITH (fillfactor = 70);

CREATE TABLE onefold_letter (
    consumer   text        NOT NULL,
    message_id text        NOT NULL,
    state      text        NOT NULL CHECK (state IN ('waiting', 'dead')),
    headers    text        NOT NULL,
    data       bytea       NOT NULL,
    body       bytea,
    envelope   text        NOT NULL,
    source     text,
    topic      text,
    key        text,
    stream     bytea,
    epoch      bigint,
    version    bigint,
    reason     text        NOT NULL,
    started    integer     NOT NULL,
    failed     integer     NOT NULL,
    history    text        NOT NULL,
    redrive    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    due_at     timestamptz,
    died_at    timestamptz,
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX onefold_letter_due ON onefold_letter (consumer, due_at) WHERE state = 'waiting';

CREATE INDEX onefold_letter_dead ON onefold_letter (consumer, died_at) WHERE state = 'dead';

CREATE INDEX onefold_letter_stream ON onefold_letter (consumer, stream, epoch, version)
WHERE stream IS NOT NULL;

CREATE INDEX onefold_letter_redrive ON onefold_letter (redrive) WHERE redrive IS NOT NULL;

CREATE TABLE onefold_redrive (
    id           text        NOT NULL PRIMARY KEY,
    consumer     text        NOT NULL,
    actor        text        NOT NULL,
    filter       text        NOT NULL,
    letters      integer     NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    cancelled_at timestamptz
);

CREATE TABLE onefold_audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    audit_at timestamptz NOT NULL DEFAULT now(),
    actor    text        NOT NULL,
    action   text        NOT NULL,
    consumer text        NOT NULL,
    details  text        NOT NULL
);

INSERT INTO onefold_migration (version) VALUES (3);

CREATE TABLE onefold_subscription (
    consumer text NOT NULL,
    topic    text NOT NULL,
    PRIMARY KEY (topic, consumer)
);

CREATE TABLE onefold_delivery (
    position   bigint GENERATED ALWAYS AS IDENTITY,
    consumer   text    NOT NULL,
    id         text    NOT NULL,
    headers    text    NOT NULL,
    data       bytea   NOT NULL,
    taken      integer NOT NULL DEFAULT 0,
    holder     text,
    held_until timestamptz,
    PRIMARY KEY (consumer, position),
    UNIQUE (consumer, id)
);

INSERT INTO onefold_migration (version) VALUES (4);

CREATE TABLE onefold_intent (
    position    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent      text        NOT NULL UNIQUE,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    target      text        NOT NULL,
    tries       integer     NOT NULL DEFAULT 1,
    reason      text,
    status      integer,
    created_at  timestamptz NOT NULL DEFAULT now(),
    tried_at    timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz
);

CREATE INDEX onefold_intent_unresolved ON onefold_intent (position) WHERE resolved_at IS NULL;

CREATE INDEX onefold_intent_resolved ON onefold_intent (resolved_at) WHERE resolved_at IS NOT NULL;

INSERT INTO onefold_migration (version) VALUES (5);

COMMIT;
DELETE FROM onefold_audit;
DELETE FROM onefold_bucket;
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('0', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('1', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('10', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('11', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('12', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('13', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('14', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('15', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('16', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('17', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('18', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('19', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('2', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('20', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('21', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('22', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('23', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('24', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('25', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('26', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('27', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('28', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('29', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('3', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('30', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('31', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('32', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('33', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('34', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('35', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('36', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('37', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('38', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('39', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('4', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('40', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('41', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('42', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('43', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('44', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('45', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('46', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('47', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('48', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('49', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('5', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('50', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('51', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('52', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('53', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('54', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('55', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('56', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('57', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('58', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('59', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('6', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('60', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('61', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('62', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('63', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('7', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('8', NULL);
INSERT INTO onefold_bucket (bucket, relay) OVERRIDING SYSTEM VALUE VALUES ('9', NULL);
DELETE FROM onefold_delivery;
DELETE FROM onefold_inbox;
INSERT INTO onefold_inbox (consumer, message_id, handled_at) OVERRIDING SYSTEM VALUE VALUES ('mailer', 'message-False', '2026-11-17 04:09:13.659018+00');
INSERT INTO onefold_inbox (consumer, message_id, handled_at) OVERRIDING SYSTEM VALUE VALUES ('mailer', 'message-True', '2026-11-17 04:09:13.597165+00');
DELETE FROM onefold_intent;
DELETE FROM onefold_letter;
DELETE FROM onefold_outbox;
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('1', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d217-7969-8eb1-43cfd71823fe', 'recorded', 'orders', 'k', '1794888552988', '1', '2026-11-17T04:09:12.983Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f7264657273227d', '2026-11-17 04:09:12.982202+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('10', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d4ad-7bec-bfde-dc3bb99d52db', 'recorded', 'orders', 'k', '1794888552988', '9', '2026-11-17T04:09:13.645Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f72646572732f31382f726566756e6473227d', '2026-11-17 04:09:13.641562+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('11', '38', NULL, '01a1e7b1-d4b1-7aa3-8c9b-21552103cfcf', 'recorded', 'orders', NULL, NULL, NULL, '2026-11-17T04:09:13.649Z', 'application/json', '{}', E'\\x7b226279223a2268616e64227d', '2026-11-17 04:09:13.649548+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('2', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d22a-711b-96da-5cba3288b5c9', 'recorded', 'orders', 'k', '1794888552988', '2', '2026-11-17T04:09:13.002Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f72646572732f31372f726566756e6473227d', '2026-11-17 04:09:13.001867+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('3', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d22d-7021-92ac-6b46051aad07', 'recorded', 'orders', 'k', '1794888552988', '3', '2026-11-17T04:09:13.005Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f7264657273227d', '2026-11-17 04:09:13.004645+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('4', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d231-771c-af0c-d7b998f8c610', 'recorded', 'orders', 'k', '1794888552988', '4', '2026-11-17T04:09:13.009Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f7264657273227d', '2026-11-17 04:09:13.008992+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('5', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d239-7000-8f64-891bdda767af', 'recorded', 'orders', 'k', '1794888552988', '5', '2026-11-17T04:09:13.017Z', 'application/json', '{}', E'\\x7b2270617468223a222f726177227d', '2026-11-17 04:09:13.017274+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('6', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d23e-75ec-ae6a-242afae638f8', 'recorded', 'orders', 'k', '1794888552988', '6', '2026-11-17T04:09:13.022Z', 'application/json', '{}', E'\\x7b2270617468223a222f6669656c6473227d', '2026-11-17 04:09:13.022414+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('7', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d359-7713-9c42-2d1b37e39bda', 'recorded', 'orders', 'k', '1794888552988', '7', '2026-11-17T04:09:13.305Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f7264657273227d', '2026-11-17 04:09:13.300073+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('8', '49', NULL, '01a1e7b1-d479-7491-9133-cc913144562b', 'recorded', 'orders', NULL, NULL, NULL, '2026-11-17T04:09:13.593Z', 'application/json', '{}', E'\\x7b226279223a2268616e64227d', '2026-11-17 04:09:13.593525+00', NULL, '0', '0', NULL, NULL);
INSERT INTO onefold_outbox (position, bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, written_at, due_at, started, finished, error, published_at) OVERRIDING SYSTEM VALUE VALUES ('9', '30', E'\\x5e75f10454689787de20a5d06237509f', '01a1e7b1-d4a2-7b91-8e86-801e6d63fed4', 'recorded', 'orders', 'k', '1794888552988', '8', '2026-11-17T04:09:13.634Z', 'application/json', '{}', E'\\x7b2270617468223a222f6f7264657273227d', '2026-11-17 04:09:13.629442+00', NULL, '0', '0', NULL, NULL);
DELETE FROM onefold_progress;
DELETE FROM onefold_record;
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\x39cf14e02b33126fed0cec43e7acc1de', E'\\x512a01159c3a802808144cc43d5225ea', 'POST /orders', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f203238206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\x659334e7ff0414cd6ce8f95a85854bb5', E'\\xfbd58f791c6e4ad0c464dff1b192efcf', 'POST /orders/{id}/refunds', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f203132206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\x6ae21f5cbed5969aa55151e53179d094', E'\\xf2ba979cf97683574fd57ce8b907eaad', 'POST /fields', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f203235206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\x9b1034f20d54d0caa3073f7b55aeba12', E'\\x0b4a276404cd787774b0dc164ca38b59', 'POST /orders', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f2038206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\xa6d38ce19cb4fdb8e009bed3a566fbe0', E'\\x0453aa6d92af73bec40eb1366159b5ee', 'POST /orders/{id}/refunds', '1', '201', E'\\x010472696e6732c0900aaf5a40218dea521c36b8515b2cf87b3b969812f18af51293657d9e5acd20b90cdc07108508866fdc104b76e058a4685bce2071a7ead5932f8be919f2aac886ac25f30957231dae785a', E'\\x010472696e6756e1aadf9f959b7dc5bb0ef60a2c96260358296a0ead068304abb2bd401a1842f6a2f498e3633ac8cfb1b0431c3711135be70680', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\xb7ec8aa672c6977bfe0fc938f3e14c1e', E'\\xb33f1367c55c138ddaf39c509d151538', 'POST /orders', '1', '201', E'\\x010472696e67f23f11a5ca8396383900efb487a0a4192c11a50c7c90460c139823719538380fa52e54ff886856235b84f5e4694c09d1a108fa5fa52c3a83d2a18136a52d13ed8a8c1c2b20f0acb0bd371cc84a', E'\\x010472696e67f9ffab4b49fc160ea978024274fd37cdbb66c12ac0b18ec0e141060fd0f00da830096f7fd72efd4b38779e46e2ea13c8f84b52be', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\xf7976cfbd77f8aa381658858083e881f', E'\\x4ecd1db22e5e0db54fa6a7216ca84838', 'POST /raw', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f203136206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\xf98b249d38aec0ea960cf57bdcd3b61f', E'\\x1a27a205e3c126af6198654a7e74f3c8', 'POST /orders', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f203937206279746573', '2999-01-01 00:00:00+00');
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at) OVERRIDING SYSTEM VALUE VALUES (E'\\xfbd0e1daa44531afe5b5f193da51ddc8', E'\\x7886dd04cb75206628f04172ea974adf', 'POST /orders', '1', '201', E'\\x00636f6e74656e742d747970653a6170706c69636174696f6e2f6a736f6e0d0a6c6f636174696f6e3a2f6f72646572732f31', E'\\x00666972737420616e7377657220746f20313230303033206279746573', '2999-01-01 00:00:00+00');
DELETE FROM onefold_redrive;
DELETE FROM onefold_relay;
DELETE FROM onefold_stream;
INSERT INTO onefold_stream (stream, epoch, version) OVERRIDING SYSTEM VALUE VALUES (E'\\x5e75f10454689787de20a5d06237509f', '1794888552988', '9');
DELETE FROM onefold_subscription;

BEGIN TRANSACTION;
CREATE TABLE onefold_audit (
            id          INTEGER PRIMARY KEY AUTOINCREMENT,
            audit_at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            actor       TEXT    NOT NULL,
            action      TEXT    NOT NULL,
            consumer    TEXT    NOT NULL,
            details     TEXT    NOT NULL
        );
CREATE TABLE onefold_bucket (bucket INTEGER NOT NULL PRIMARY KEY, relay TEXT);
INSERT INTO "onefold_bucket" VALUES(0,NULL);
INSERT INTO "onefold_bucket" VALUES(1,NULL);
INSERT INTO "onefold_bucket" VALUES(2,NULL);
INSERT INTO "onefold_bucket" VALUES(3,NULL);
INSERT INTO "onefold_bucket" VALUES(4,NULL);
INSERT INTO "onefold_bucket" VALUES(5,NULL);
INSERT INTO "onefold_bucket" VALUES(6,NULL);
INSERT INTO "onefold_bucket" VALUES(7,NULL);
INSERT INTO "onefold_bucket" VALUES(8,NULL);
INSERT INTO "onefold_bucket" VALUES(9,NULL);
INSERT INTO "onefold_bucket" VALUES(10,NULL);
INSERT INTO "onefold_bucket" VALUES(11,NULL);
INSERT INTO "onefold_bucket" VALUES(12,NULL);
INSERT INTO "onefold_bucket" VALUES(13,NULL);
INSERT INTO "onefold_bucket" VALUES(14,NULL);
INSERT INTO "onefold_bucket" VALUES(15,NULL);
INSERT INTO "onefold_bucket" VALUES(16,NULL);
INSERT INTO "onefold_bucket" VALUES(17,NULL);
INSERT INTO "onefold_bucket" VALUES(18,NULL);
INSERT INTO "onefold_bucket" VALUES(19,NULL);
INSERT INTO "onefold_bucket" VALUES(20,NULL);
INSERT INTO "onefold_bucket" VALUES(21,NULL);
INSERT INTO "onefold_bucket" VALUES(22,NULL);
INSERT INTO "onefold_bucket" VALUES(23,NULL);
INSERT INTO "onefold_bucket" VALUES(24,NULL);
INSERT INTO "onefold_bucket" VALUES(25,NULL);
INSERT INTO "onefold_bucket" VALUES(26,NULL);
INSERT INTO "onefold_bucket" VALUES(27,NULL);
INSERT INTO "onefold_bucket" VALUES(28,NULL);
INSERT INTO "onefold_bucket" VALUES(29,NULL);
INSERT INTO "onefold_bucket" VALUES(30,NULL);
INSERT INTO "onefold_bucket" VALUES(31,NULL);
INSERT INTO "onefold_bucket" VALUES(32,NULL);
INSERT INTO "onefold_bucket" VALUES(33,NULL);
INSERT INTO "onefold_bucket" VALUES(34,NULL);
INSERT INTO "onefold_bucket" VALUES(35,NULL);
INSERT INTO "onefold_bucket" VALUES(36,NULL);
INSERT INTO "onefold_bucket" VALUES(37,NULL);
INSERT INTO "onefold_bucket" VALUES(38,NULL);
INSERT INTO "onefold_bucket" VALUES(39,NULL);
INSERT INTO "onefold_bucket" VALUES(40,NULL);
INSERT INTO "onefold_bucket" VALUES(41,NULL);
INSERT INTO "onefold_bucket" VALUES(42,NULL);
INSERT INTO "onefold_bucket" VALUES(43,NULL);
INSERT INTO "onefold_bucket" VALUES(44,NULL);
INSERT INTO "onefold_bucket" VALUES(45,NULL);
INSERT INTO "onefold_bucket" VALUES(46,NULL);
INSERT INTO "onefold_bucket" VALUES(47,NULL);
INSERT INTO "onefold_bucket" VALUES(48,NULL);
INSERT INTO "onefold_bucket" VALUES(49,NULL);
INSERT INTO "onefold_bucket" VALUES(50,NULL);
INSERT INTO "onefold_bucket" VALUES(51,NULL);
INSERT INTO "onefold_bucket" VALUES(52,NULL);
INSERT INTO "onefold_bucket" VALUES(53,NULL);
INSERT INTO "onefold_bucket" VALUES(54,NULL);
INSERT INTO "onefold_bucket" VALUES(55,NULL);
INSERT INTO "onefold_bucket" VALUES(56,NULL);
INSERT INTO "onefold_bucket" VALUES(57,NULL);
INSERT INTO "onefold_bucket" VALUES(58,NULL);
INSERT INTO "onefold_bucket" VALUES(59,NULL);
INSERT INTO "onefold_bucket" VALUES(60,NULL);
INSERT INTO "onefold_bucket" VALUES(61,NULL);
INSERT INTO "onefold_bucket" VALUES(62,NULL);
INSERT INTO "onefold_bucket" VALUES(63,NULL);
CREATE TABLE onefold_claim (
            digest          BLOB    NOT NULL PRIMARY KEY,
            fingerprint     BLOB    NOT NULL,
            operation       TEXT    NOT NULL,
            fence           INTEGER NOT NULL,
            lease_until_ms  INTEGER NOT NULL,
            forget_after_ms INTEGER NOT NULL
        ) WITHOUT ROWID
        ;
CREATE TABLE onefold_delivery (
            position      INTEGER PRIMARY KEY AUTOINCREMENT,
            consumer      TEXT    NOT NULL,
            id            TEXT    NOT NULL,
            headers       TEXT    NOT NULL,
            data          BLOB    NOT NULL,
            taken         INTEGER NOT NULL DEFAULT 0,
            holder        TEXT,
            held_until_ms INTEGER,
            UNIQUE (consumer, id)
        );
CREATE TABLE onefold_inbox (
            consumer      TEXT    NOT NULL,
            message_id    TEXT    NOT NULL,
            handled_at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            PRIMARY KEY (consumer, message_id)
        ) WITHOUT ROWID
        ;
INSERT INTO "onefold_inbox" VALUES('mailer','message-True',1794888552520);
INSERT INTO "onefold_inbox" VALUES('mailer','message-False',1794888552641);
CREATE TABLE onefold_intent (
            position       INTEGER PRIMARY KEY,
            intent         TEXT    NOT NULL UNIQUE,
            key            TEXT    NOT NULL,
            fingerprint    BLOB    NOT NULL,
            target         TEXT    NOT NULL,
            tries          INTEGER NOT NULL DEFAULT 1,
            reason         TEXT,
            status         INTEGER,
            created_at_ms  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            tried_at_ms    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            resolved_at_ms INTEGER
        );
CREATE TABLE onefold_letter (
            consumer      TEXT    NOT NULL,
            message_id    TEXT    NOT NULL,
            state         TEXT    NOT NULL CHECK (state IN ('waiting', 'dead')),
            headers       TEXT    NOT NULL,
            data          BLOB    NOT NULL,
            body          BLOB,
            envelope      TEXT    NOT NULL,
            source        TEXT,
            topic         TEXT,
            key           TEXT,
            stream        BLOB,
            epoch         INTEGER,
            version       INTEGER,
            reason        TEXT    NOT NULL,
            started       INTEGER NOT NULL,
            failed        INTEGER NOT NULL,
            history       TEXT    NOT NULL,
            redrive       TEXT,
            created_at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            due_at_ms     INTEGER,
            died_at_ms    INTEGER,
            PRIMARY KEY (consumer, message_id)
        );
CREATE TABLE onefold_migration (version INTEGER NOT NULL PRIMARY KEY, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
INSERT INTO "onefold_migration" VALUES(1,'2026-11-17 04:09:11');
INSERT INTO "onefold_migration" VALUES(2,'2026-11-17 04:09:11');
INSERT INTO "onefold_migration" VALUES(3,'2026-11-17 04:09:11');
INSERT INTO "onefold_migration" VALUES(4,'2026-11-17 04:09:11');
INSERT INTO "onefold_migration" VALUES(5,'2026-11-17 04:09:11');
CREATE TABLE onefold_outbox (
            position        INTEGER PRIMARY KEY AUTOINCREMENT,
            bucket          INTEGER NOT NULL,
            stream          BLOB,
            id              TEXT    NOT NULL,
            source          TEXT    NOT NULL,
            topic           TEXT    NOT NULL,
            key             TEXT,
            epoch           INTEGER,
            version         INTEGER,
            time            TEXT    NOT NULL,
            content_type    TEXT    NOT NULL,
            headers         TEXT    NOT NULL,
            data            BLOB    NOT NULL,
            written_at_ms   INTEGER NOT NULL,
            due_at_ms       INTEGER,
            started         INTEGER NOT NULL DEFAULT 0,
            finished        INTEGER NOT NULL DEFAULT 0,
            error           TEXT,
            published_at_ms INTEGER
        );
INSERT INTO "onefold_outbox" VALUES(1,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cd60-7855-bae5-fc271ba78458','recorded','orders','k',1794888551778,1,'2026-11-17T04:09:11.776Z','application/json','{}',X'7B2270617468223A222F6F7264657273227D',1794888551778,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(2,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cd72-7e49-bf22-19bbf689bc10','recorded','orders','k',1794888551778,2,'2026-11-17T04:09:11.794Z','application/json','{}',X'7B2270617468223A222F6F72646572732F31372F726566756E6473227D',1794888551794,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(3,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cd7c-7602-a7b9-42b9d60dea02','recorded','orders','k',1794888551778,3,'2026-11-17T04:09:11.804Z','application/json','{}',X'7B2270617468223A222F6F7264657273227D',1794888551805,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(4,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cd86-7553-8563-49e6391b46d5','recorded','orders','k',1794888551778,4,'2026-11-17T04:09:11.814Z','application/json','{}',X'7B2270617468223A222F6F7264657273227D',1794888551814,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(5,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cd92-7ba3-99b1-e51f520995d7','recorded','orders','k',1794888551778,5,'2026-11-17T04:09:11.826Z','application/json','{}',X'7B2270617468223A222F726177227D',1794888551827,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(6,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cda1-79e0-b31a-986d10b90c23','recorded','orders','k',1794888551778,6,'2026-11-17T04:09:11.841Z','application/json','{}',X'7B2270617468223A222F6669656C6473227D',1794888551841,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(7,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-cf5f-7fd1-85e1-b7dc85e40b00','recorded','orders','k',1794888551778,7,'2026-11-17T04:09:12.287Z','application/json','{}',X'7B2270617468223A222F6F7264657273227D',1794888552286,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(8,63,NULL,'01a1e7b1-d03f-7d82-91a8-ae7958de7a41','recorded','orders',NULL,NULL,NULL,'2026-11-17T04:09:12.511Z','application/json','{}',X'7B226279223A2268616E64227D',1794888552511,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(9,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-d095-75f4-9b89-cd504cb7b299','recorded','orders','k',1794888551778,8,'2026-11-17T04:09:12.597Z','application/json','{}',X'7B2270617468223A222F6F7264657273227D',1794888552597,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(10,30,X'5E75F10454689787DE20A5D06237509F','01a1e7b1-d0aa-7b3f-95d8-18cc0356808e','recorded','orders','k',1794888551778,9,'2026-11-17T04:09:12.618Z','application/json','{}',X'7B2270617468223A222F6F72646572732F31382F726566756E6473227D',1794888552618,NULL,0,0,NULL,NULL);
INSERT INTO "onefold_outbox" VALUES(11,44,NULL,'01a1e7b1-d0b9-703b-ae8f-b9f8c302d87e','recorded','orders',NULL,NULL,NULL,'2026-11-17T04:09:12.633Z','application/json','{}',X'7B226279223A2268616E64227D',1794888552634,NULL,0,0,NULL,NULL);
CREATE TABLE onefold_progress (
            consumer     TEXT    NOT NULL,
            stream       BLOB    NOT NULL,
            epoch        INTEGER NOT NULL,
            version      INTEGER NOT NULL,
            settle_at_ms INTEGER,
            PRIMARY KEY (consumer, stream)
        ) WITHOUT ROWID
        ;
CREATE TABLE onefold_record (
            digest         BLOB    NOT NULL PRIMARY KEY,
            fingerprint    BLOB    NOT NULL,
            operation      TEXT    NOT NULL,
            schema_version INTEGER NOT NULL,
            status         INTEGER NOT NULL,
            headers        BLOB    NOT NULL,
            body           BLOB,
            expires_at_ms  INTEGER NOT NULL
        );
INSERT INTO "onefold_record" VALUES(X'39CF14E02B33126FED0CEC43E7ACC1DE',X'512A01159C3A802808144CC43D5225EA','POST /orders',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F203238206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'659334E7FF0414CD6CE8F95A85854BB5',X'FBD58F791C6E4AD0C464DFF1B192EFCF','POST /orders/{id}/refunds',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F203132206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'9B1034F20D54D0CAA3073F7B55AEBA12',X'0B4A276404CD787774B0DC164CA38B59','POST /orders',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F2038206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'F98B249D38AEC0EA960CF57BDCD3B61F',X'1A27A205E3C126AF6198654A7E74F3C8','POST /orders',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F203937206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'F7976CFBD77F8AA381658858083E881F',X'4ECD1DB22E5E0DB54FA6A7216CA84838','POST /raw',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F203136206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'6AE21F5CBED5969AA55151E53179D094',X'F2BA979CF97683574FD57CE8B907EAAD','POST /fields',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F203235206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'FBD0E1DAA44531AFE5B5F193DA51DDC8',X'7886DD04CB75206628F04172EA974ADF','POST /orders',1,201,X'00636F6E74656E742D747970653A6170706C69636174696F6E2F6A736F6E0D0A6C6F636174696F6E3A2F6F72646572732F31',X'00666972737420616E7377657220746F20313230303033206279746573',32472144000000);
INSERT INTO "onefold_record" VALUES(X'B7EC8AA672C6977BFE0FC938F3E14C1E',X'B33F1367C55C138DDAF39C509D151538','POST /orders',1,201,X'010472696E67E5F25CD627E3828D6971351951083E0F072212A7CD819B0E194645B643CEF2D3C4EC1EC4DB3207FF6EC82C869156F5E6D4A6086D4F77E475471893D9E95D6FEAD3D14B02ED446B173CD9ABE44F',X'010472696E67EE3235DF783B43095C36F4719FC53A827F3D70E5ECEA43548F9BD50D3BFCBC899CFA16971BE54B742EE66454F12252028A1BEC6F',32472144000000);
INSERT INTO "onefold_record" VALUES(X'A6D38CE19CB4FDB8E009BED3A566FBE0',X'0453AA6D92AF73BEC40EB1366159B5EE','POST /orders/{id}/refunds',1,201,X'010472696E67A4E4F14AA628EFDBCC6E8BB12254DFD4D446BAFF7AFB8883FA32DFFD7F6AAB00C0216F9D82333CD21575DDFC63733F450C2103DEB514FF4D073359761972314A27BA4E754B2FEA9BB239752088',X'010472696E67272ADC42623D004D562380EC1616D7B72839DE708B294B95736DE3BCEFF1462E13CA39B0FA21495A9E9D92329713E9827F01E0E5',32472144000000);
CREATE TABLE onefold_redrive (
            id              TEXT    NOT NULL PRIMARY KEY,
            consumer        TEXT    NOT NULL,
            actor           TEXT    NOT NULL,
            filter          TEXT    NOT NULL,
            letters         INTEGER NOT NULL,
            started_at_ms   INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
            cancelled_at_ms INTEGER
        ) WITHOUT ROWID
        ;
CREATE TABLE onefold_relay (
            relay           TEXT    NOT NULL PRIMARY KEY,
            leased_until_ms INTEGER NOT NULL,
            trying          TEXT    NOT NULL DEFAULT '[]'
        ) WITHOUT ROWID
        ;
CREATE TABLE onefold_stream (
            stream  BLOB    NOT NULL PRIMARY KEY,
            epoch   INTEGER NOT NULL,
            version INTEGER NOT NULL
        ) WITHOUT ROWID
        ;
INSERT INTO "onefold_stream" VALUES(X'5E75F10454689787DE20A5D06237509F',1794888551778,9);
CREATE TABLE onefold_subscription (
            consumer TEXT NOT NULL,
            topic    TEXT NOT NULL,
            PRIMARY KEY (topic, consumer)
        ) WITHOUT ROWID
        ;
CREATE INDEX onefold_record_expires_at ON onefold_record (expires_at_ms);
CREATE INDEX onefold_outbox_ready ON onefold_outbox (bucket, position)
        WHERE published_at_ms IS NULL AND due_at_ms IS NULL
        ;
CREATE INDEX onefold_outbox_due ON onefold_outbox (due_at_ms)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL
        ;
CREATE INDEX onefold_outbox_stopped ON onefold_outbox (stream)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND stream IS NOT NULL
        ;
CREATE INDEX onefold_outbox_published ON onefold_outbox (published_at_ms) WHERE published_at_ms IS NOT NULL;
CREATE INDEX onefold_inbox_handled_at ON onefold_inbox (consumer, handled_at_ms);
CREATE INDEX onefold_letter_due ON onefold_letter (consumer, due_at_ms) WHERE state = 'waiting';
CREATE INDEX onefold_letter_dead ON onefold_letter (consumer, died_at_ms) WHERE state = 'dead';
CREATE INDEX onefold_letter_stream ON onefold_letter (consumer, stream, epoch, version)
        WHERE stream IS NOT NULL
        ;
CREATE INDEX onefold_letter_redrive ON onefold_letter (redrive) WHERE redrive IS NOT NULL;
CREATE INDEX onefold_delivery_of_consumer ON onefold_delivery (consumer, position);
CREATE INDEX onefold_intent_unresolved ON onefold_intent (position) WHERE resolved_at_ms IS NULL;
CREATE INDEX onefold_intent_resolved ON onefold_intent (resolved_at_ms) WHERE resolved_at_ms IS NOT NULL;
COMMIT;

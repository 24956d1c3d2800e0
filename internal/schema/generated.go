// Code generated from the .sql files by go generate. DO NOT EDIT.
//
// Comments are in the .sql files alone.

package schema

const (
	number   = 7
	revision = 41
)

const stateSQL = `
WITH a AS MATERIALIZED (SELECT (SELECT substring(p.prosrc FROM '\{.*\}')::jsonb FROM pg_proc p
	WHERE p.oid = to_regprocedure('rate_limit_about()')) AS about, coalesce((SELECT count(*) >= (b.about ->> 'triggers')::int AND bool_and(g.tgenabled <> 'D')
	FROM (SELECT (SELECT substring(p.prosrc FROM '\{.*\}')::jsonb FROM pg_proc p
	WHERE p.oid = to_regprocedure('rate_limit_about()')) AS about) b, pg_trigger g
	WHERE g.tgname LIKE 'rate\_limit\_%' AND g.tgname <> 'rate_limit_refuse_count'
		AND g.tgrelid IN (SELECT to_regclass(t) FROM jsonb_array_elements_text(b.about -> 'tables') t)
	GROUP BY b.about), false) AS whole), m AS MATERIALIZED (SELECT coalesce(array_agg(t), '{}') AS tables, coalesce(bool_or(t NOT IN
			('rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes')), false) AS others FROM a, jsonb_array_elements_text(a.about -> 'tables') t WHERE to_regclass(t) IS NULL),
s AS MATERIALIZED (SELECT a.about IS NOT NULL AND NOT (a.whole AND NOT m.others AND (SELECT count(*) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
			WHERE a.about -> 'keys' ? concat(c.relname, '.', k.conname) AND pg_table_is_visible(c.oid)) = (SELECT count(*) FROM jsonb_array_elements_text(a.about -> 'keys') AS k WHERE split_part(k, '.', 1) <> ALL (m.tables))) AS in_part,
	m.tables <> '{}' AND NOT m.others AS lacks, a.about IS NULL AND EXISTS (SELECT FROM pg_proc p WHERE p.proname = 'rate_limit_behind' AND pg_function_is_visible(p.oid)) AS unnumbered FROM a, m)
SELECT coalesce((a.about ->> 'number')::int, 0) AS number, coalesce((a.about ->> 'revision')::int, 0) AS revision, coalesce((a.about ->> 'oldest')::int, 0) AS oldest, s.in_part, s.lacks, s.unnumbered, CASE
		WHEN s.in_part THEN 'the tables are there in part, as during a restore and after one that has failed. If no restore is under way, repeat the restore, or drop all tables and functions of pg-ratelimit, and run schema.sql'
		WHEN s.unnumbered THEN 'the tables were made before 0.1.0: dump the rows that you need, and drop all tables and functions with names that begin with rate_limit_' WHEN a.about IS NULL THEN coalesce(
			(SELECT string_agg(format('the table %s.%I is of another program: rename it, or give pg-ratelimit a schema of its own, with CREATE SCHEMA limits, and search_path=limits in '
				'the DSN of all proxies and commands', c.relnamespace::regnamespace, c.relname), '; ' ORDER BY c.relname) FROM jsonb_array_elements_text('{"restricts":{},"tables":["rate_limit_ephemeral","rate_limit_durable","rate_limit_processes","rate_limit_ledger","rate_limit_grants","rate_limit_nodes","rate_limit_secrets","rate_limit_notices","rate_limit_ledger_retention","rate_limit_ledger_days","rate_limit_totals","rate_limit_audit","rate_limit_metrics","rate_limit_writers","rate_limit_retention","rate_limit_tiers","rate_limit_users","rate_limit_api_keys","rate_limit_prices","rate_limit_rules","rate_limit_rule_limits","rate_limit_overrides","rate_limit_bans","rate_limit_changes","rate_limit_lost","rate_limit_forgotten"]}'::jsonb -> 'tables') t JOIN pg_class c ON c.oid = to_regclass(t)
			WHERE t NOT IN ('rate_limit_ephemeral', 'rate_limit_durable') OR (SELECT count(*) FROM pg_attribute f WHERE f.attrelid = c.oid AND f.attname IN ('prefix', 'key', 'expires_at')) < 3),
			(SELECT string_agg(format('%s: the column %s has the type %s, must be %s: ALTER TABLE %1$s ALTER COLUMN %2$s TYPE %4$s', f.attrelid::regclass, f.attname, format_type(f.atttypid, f.atttypmod), w.type), '; ')
			FROM pg_attribute f JOIN (VALUES ('prefix', 'text'), ('key', 'text'), ('count', 'bigint'), ('prev_count', 'bigint'), ('window_start', 'timestamptz'), ('tokens', 'float8'), ('last_refill', 'timestamptz'), ('expires_at', 'timestamptz')
			) AS w(name, type) ON f.attname = w.name AND NOT f.attisdropped WHERE f.attrelid IN (to_regclass('rate_limit_ephemeral'), to_regclass('rate_limit_durable')) AND f.atttypid <> w.type::regtype)) END AS fault FROM a, s
`

const sql0001_baselineshards = `CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral ( prefix       TEXT COLLATE "C" NOT NULL, key          TEXT COLLATE "C" NOT NULL, count        BIGINT, prev_count   BIGINT, window_start TIMESTAMPTZ, tokens       DOUBLE PRECISION,
	last_refill  TIMESTAMPTZ, expires_at   TIMESTAMPTZ NOT NULL, hits         TIMESTAMPTZ[], remainder    BIGINT, ord          INT, granted      BIGINT, slots        BIGINT[], held         BIGINT[], PRIMARY KEY (prefix, key) );
--;
CREATE TABLE IF NOT EXISTS rate_limit_durable (LIKE rate_limit_ephemeral, PRIMARY KEY (prefix, key));
--;
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
--;
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
--;
CREATE TABLE IF NOT EXISTS rate_limit_processes ( process bigint PRIMARY KEY, seen    timestamptz NOT NULL );
--;
COMMENT ON TABLE rate_limit_ephemeral IS 'The counters that a crash of the server empties.';
--;
COMMENT ON TABLE rate_limit_durable IS 'The counters that survive a crash of the server.';
--;
COMMENT ON TABLE rate_limit_processes IS 'The processes with running requests that hold slots of in_flight limits, or tokens. Each renews its row every 3 seconds.';
--;
COMMENT ON COLUMN rate_limit_processes.process IS 'About the start of the process in seconds since 2000. After a long pause, a process takes another row.';
--;
COMMENT ON COLUMN rate_limit_processes.seen IS 'When the process renewed this row. 10 seconds later, what its requests hold is free.';
--;
CREATE TABLE IF NOT EXISTS rate_limit_ledger ( day              date NOT NULL, id               uuid NOT NULL, time             timestamptz NOT NULL, user_id          text, key_id           bigint,
	ancestors        text[] NOT NULL DEFAULT '{}', model            text, input            bigint, cache_read       bigint, cache_write      bigint, output           bigint, money            bigint, charges          jsonb NOT NULL,
	kind             text NOT NULL DEFAULT 'charge', cache_write_1h   bigint, audio_input      bigint, audio_cache_read bigint, audio_output     bigint, image_input      bigint, image_output     bigint, search           bigint,
	estimated_input  bigint, estimated_output bigint, estimated_money  numeric, remainder        smallint, tier             text, answered         text, price            text, price_valid      tstzrange, lines            jsonb,
	corrects         uuid, corrects_time    timestamptz, corrected_by     text, reason           text, CONSTRAINT amounts_of_a_charge_must_be_0_or_more CHECK (kind <> 'charge'
		OR least(input, cache_read, cache_write, cache_write_1h, output, audio_input, audio_cache_read, audio_output, image_input, image_output, search, estimated_input, estimated_output, money,
			money * 1000 + remainder, remainder + 999, -remainder) >= 0 AND estimated_money >= 0 AND NOT lines @? '$[*].* ? (@ < 0)' AND NOT charges @? '$[*] ? (!(@.units.type() == "number" && @.units >= 0 && @.units < 1e18))')
) PARTITION BY RANGE (day);
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_user ON rate_limit_ledger (user_id, time);
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_ancestors ON rate_limit_ledger USING gin (ancestors) WHERE ancestors <> '{}';
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_parts ON rate_limit_ledger (time) WHERE num_nonnulls(audio_input, audio_cache_read, audio_output, image_input, image_output, search, lines) > 0;
--;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_corrects ON rate_limit_ledger (corrects) WHERE corrects IS NOT NULL;
--;
COMMENT ON TABLE rate_limit_ledger IS 'What requests have cost on limits of tokens and money: a row for each request, or on Citus for each part of it, and one for each correction.';
--;
COMMENT ON COLUMN rate_limit_ledger.day IS 'The day on which the request came, in UTC.';
--;
COMMENT ON COLUMN rate_limit_ledger.id IS 'The number of the request.';
--;
COMMENT ON COLUMN rate_limit_ledger.time IS 'When the request was charged, after its response.';
--;
COMMENT ON COLUMN rate_limit_ledger.user_id IS 'The name by which the user counts. NULL: unknown, or forgotten.';
--;
COMMENT ON COLUMN rate_limit_ledger.key_id IS 'The id of the API key. NULL: none, or forgotten.';
--;
COMMENT ON COLUMN rate_limit_ledger.ancestors IS 'The users above the user when the request came, the nearest first, by the names by which they count. Empty: forgotten.';
--;
COMMENT ON COLUMN rate_limit_ledger.model IS 'The model that the request named. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_ledger.input IS 'The tokens of the prompt that no cache had, without sound and pictures. NULL: not reported.';
--;
COMMENT ON COLUMN rate_limit_ledger.cache_read IS 'The tokens of the prompt that came from a cache, as input.';
--;
COMMENT ON COLUMN rate_limit_ledger.cache_write IS 'The tokens of the prompt that were written to a cache for five minutes, as input.';
--;
COMMENT ON COLUMN rate_limit_ledger.output IS 'The tokens of the answer, without sound and pictures, as input.';
--;
COMMENT ON COLUMN rate_limit_ledger.money IS 'The cost in millionths of the currency of the prices, rounded up. NULL: the model has no price.';
--;
COMMENT ON COLUMN rate_limit_ledger.charges IS 'What was charged: a list of objects with the prefix, key and durable of a counter, the unit, and the units.';
--;
COMMENT ON COLUMN rate_limit_ledger.kind IS 'charge: what a request has cost. correction: how much more or less it costs by a later price. A correction has the users and the model of the request, money, charges and lines.';
--;
COMMENT ON COLUMN rate_limit_ledger.remainder IS 'The billionths by which money is too much, negated, from -999. NULL: 0.';
--;
COMMENT ON COLUMN rate_limit_ledger.cache_write_1h IS 'The tokens of the prompt that were written to a cache for an hour. In this and the following columns, NULL is 0.';
--;
COMMENT ON COLUMN rate_limit_ledger.audio_input IS 'The tokens of sound in the prompt.';
--;
COMMENT ON COLUMN rate_limit_ledger.audio_cache_read IS 'The tokens of sound in the prompt that came from a cache.';
--;
COMMENT ON COLUMN rate_limit_ledger.audio_output IS 'The tokens of sound in the answer.';
--;
COMMENT ON COLUMN rate_limit_ledger.image_input IS 'The tokens of pictures in the prompt.';
--;
COMMENT ON COLUMN rate_limit_ledger.image_output IS 'The tokens of pictures in the answer.';
--;
COMMENT ON COLUMN rate_limit_ledger.search IS 'The number of searches.';
--;
COMMENT ON COLUMN rate_limit_ledger.estimated_input IS 'How much of input or cache_write is an estimate, because the response did not report it.';
--;
COMMENT ON COLUMN rate_limit_ledger.estimated_output IS 'How much of output is an estimate.';
--;
COMMENT ON COLUMN rate_limit_ledger.estimated_money IS 'What the estimates of input and output cost, in millionths, exact. NULL: nothing.';
--;
COMMENT ON COLUMN rate_limit_ledger.tier IS 'The tier of service of the prices. NULL: standard.';
--;
COMMENT ON COLUMN rate_limit_ledger.answered IS 'The model that the response named. NULL: none, or the one of the request.';
--;
COMMENT ON COLUMN rate_limit_ledger.price IS 'The model of the row of prices, such as gpt-*. NULL: as model.';
--;
COMMENT ON COLUMN rate_limit_ledger.price_valid IS 'The column valid of that row. NULL: without bounds.';
--;
COMMENT ON COLUMN rate_limit_ledger.lines IS 'What further models have cost: a list of objects with model and the columns of the parts, and with '
	'money, which is exact here. NULL: none. Function rate_limit_ledger_rows has a row for each.';
--;
COMMENT ON COLUMN rate_limit_ledger.corrects IS 'The request that a correction corrects.';
--;
COMMENT ON COLUMN rate_limit_ledger.corrects_time IS 'When that request was charged.';
--;
COMMENT ON COLUMN rate_limit_ledger.corrected_by IS 'The role that has made a correction.';
--;
COMMENT ON COLUMN rate_limit_ledger.reason IS 'The reason for a correction.';
--;
`

const sql0001_baseline = `CREATE TABLE rate_limit_grants ( role text, kind text, PRIMARY KEY (role, kind) );
--;
CREATE UNLOGGED TABLE rate_limit_nodes ( node   text, epoch  bigint DEFAULT 0, seen   timestamptz NOT NULL DEFAULT now(), ended  timestamptz, system bigint DEFAULT (pg_control_system()).system_identifier, report json NOT NULL DEFAULT '{}',
	role   text DEFAULT session_user, PRIMARY KEY (node, epoch, role), CONSTRAINT seen_must_be_from_2000_to_2999 CHECK (seen >= '2000-01-01 UTC' AND seen < '3000-01-01 UTC'),
	CONSTRAINT node_must_have_1_to_200_bytes CHECK (octet_length(node) BETWEEN 1 AND 200) ) WITH (fillfactor = 50);
--;
CREATE TYPE rate_limit_report AS (region text, version text, cannot text, applied text, log oid, problems text[], clock bigint, local_from bigint, local_until bigint, requests bigint[],
	open_from bigint, open_until bigint, open_passed bigint, open_refused bigint, locally bigint, busiest json, lost bigint, lost_at bigint);
--;
CREATE TABLE rate_limit_secrets ( name  text PRIMARY KEY, value text NOT NULL );
--;
INSERT INTO rate_limit_secrets (name, value) VALUES ('partition', gen_random_uuid()::text || gen_random_uuid()::text);
--;
CREATE TABLE rate_limit_notices ( rule       text NOT NULL, limit_name text NOT NULL, key        text COLLATE "C" NOT NULL, period     timestamptz NOT NULL, percent    bigint NOT NULL, used       numeric NOT NULL,
	quota      numeric NOT NULL, at         timestamptz NOT NULL DEFAULT now(), taken_at   timestamptz, resets_at  timestamptz, void_at    timestamptz NOT NULL DEFAULT 'infinity', id         uuid NOT NULL DEFAULT gen_random_uuid(),
	tried_at   timestamptz, try_at     timestamptz NOT NULL DEFAULT '-infinity', error      text, PRIMARY KEY (rule, limit_name, key, period, percent, quota, void_at) );
--;
CREATE INDEX rate_limit_notices_to_take ON rate_limit_notices (try_at, at) WHERE taken_at IS NULL AND void_at = 'infinity';
--;
CREATE TABLE rate_limit_ledger_retention ( keep interval PRIMARY KEY CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day'), noticed_at timestamptz NOT NULL DEFAULT '-infinity', noticed_limit text NOT NULL DEFAULT '',
	noticed_key text NOT NULL DEFAULT '', currency text CONSTRAINT currency_must_be_a_code_of_three_letters_such_as_eur CHECK (currency ~ '^[A-Z]{3}$') );
--;
INSERT INTO rate_limit_ledger_retention VALUES ('400 days');
--;
CREATE TABLE rate_limit_ledger_days ( day        date PRIMARY KEY, summed     boolean NOT NULL DEFAULT false, open_until timestamptz NOT NULL DEFAULT '-infinity' );
--;
CREATE TABLE rate_limit_totals ( day              date, n                bigint, user_id          text NOT NULL, ancestors        text[] NOT NULL, own              boolean NOT NULL, settled          date NOT NULL,
	kind             text NOT NULL, model            text, prefix           text, unit             text, corrects         timestamptz, requests         bigint NOT NULL, units            numeric, input            numeric,
	cache_read       numeric, cache_write      numeric, output           numeric, money            numeric, remainder        numeric, cache_write_1h   numeric, audio_input      numeric, audio_cache_read numeric, audio_output     numeric,
	image_input      numeric, image_output     numeric, search           numeric, estimated_input  numeric, estimated_output numeric, estimated_money  numeric, PRIMARY KEY (day, n) );
--;
CREATE INDEX rate_limit_totals_user ON rate_limit_totals (user_id, settled);
--;
CREATE TABLE rate_limit_audit ( time           timestamptz NOT NULL, cost           bigint NOT NULL, count          bigint NOT NULL DEFAULT 1, quota          bigint, remaining      bigint, key_id         bigint, retry_after_ms bigint,
	duration_us    bigint NOT NULL, weight         float8 NOT NULL DEFAULT 1, status         integer, shadow         boolean NOT NULL DEFAULT false, outcome        text NOT NULL, reason         text, model          text,
	prefix         text NOT NULL, limit_name     text, key            text, user_id        text, tier           text, address        inet, host           text, method         text, path           text, node           text NOT NULL,
	region         text, also           text[], id             bigint, unit           text, CONSTRAINT outcome_must_be_as_in_docs_metrics_md CHECK (outcome IN ('admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed'))
) PARTITION BY RANGE (time);
--;
CREATE SEQUENCE rate_limit_audit_id OWNED BY rate_limit_audit.id;
--;
CREATE INDEX rate_limit_audit_time ON rate_limit_audit USING brin (time) WITH (pages_per_range = 16, autosummarize = on);
--;
CREATE INDEX rate_limit_audit_user ON rate_limit_audit (user_id, time) WHERE user_id IS NOT NULL;
--;
CREATE INDEX rate_limit_audit_outcome ON rate_limit_audit (outcome, time) WHERE outcome <> 'admitted';
--;
CREATE INDEX rate_limit_audit_who ON rate_limit_audit USING brin (time, key text_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001), address inet_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	key_id int8_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001)) WITH (pages_per_range = 8, autosummarize = on);
--;
CREATE TABLE rate_limit_metrics ( granularity   text NOT NULL, time          timestamptz NOT NULL, user_id       text NOT NULL DEFAULT '', key_id        bigint NOT NULL DEFAULT 0, prefix        text NOT NULL DEFAULT '',
	limit_name    text NOT NULL DEFAULT '', unit          text NOT NULL DEFAULT '', endpoint      text NOT NULL DEFAULT '', region        text NOT NULL DEFAULT '', requests      bigint NOT NULL DEFAULT 0,
	admitted      bigint NOT NULL DEFAULT 0, limited       bigint NOT NULL DEFAULT 0, blocked       bigint NOT NULL DEFAULT 0, rejected      bigint NOT NULL DEFAULT 0, overloaded    bigint NOT NULL DEFAULT 0,
	failed        bigint NOT NULL DEFAULT 0, shadow        bigint NOT NULL DEFAULT 0, settled       bigint NOT NULL DEFAULT 0, from_memory   bigint NOT NULL DEFAULT 0, from_lease    bigint NOT NULL DEFAULT 0,
	from_database bigint NOT NULL DEFAULT 0, last_request  timestamptz NOT NULL, durations     bigint[] NOT NULL DEFAULT '{}', CONSTRAINT granularity_must_be_minute_hour_or_day CHECK (granularity IN ('minute', 'hour', 'day'))
) PARTITION BY LIST (granularity);
--;
CREATE UNIQUE INDEX rate_limit_metrics_key ON rate_limit_metrics (user_id, time, key_id, prefix, limit_name, unit, endpoint, region, granularity);
--;
CREATE INDEX rate_limit_metrics_time ON rate_limit_metrics USING brin (time) WITH (pages_per_range = 16, autosummarize = on);
--;
DO $$
DECLARE
	part text;
BEGIN
	FOREACH part IN ARRAY ARRAY['minute', 'hour', 'day'] LOOP
		EXECUTE format('CREATE TABLE rate_limit_metrics_%1$s (LIKE rate_limit_metrics INCLUDING ALL) %2$s;
			ALTER TABLE rate_limit_metrics ATTACH PARTITION rate_limit_metrics_%1$s FOR VALUES IN (%1$L);
			COMMENT ON TABLE rate_limit_metrics_%1$s IS ''The %1$ss of rate_limit_metrics, in UTC.''',
			part, CASE WHEN part <> 'day' THEN 'PARTITION BY RANGE (time)' END);
	END LOOP;
	EXECUTE (SELECT format('ALTER TABLE rate_limit_metrics_day REPLICA IDENTITY USING INDEX %I', c.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = 'rate_limit_metrics_day'::regclass AND i.indisunique);
END $$;
--;
CREATE TABLE rate_limit_writers ( writer  text PRIMARY KEY, node    text NOT NULL, region  text, batch   bigint NOT NULL, written bigint NOT NULL DEFAULT 0, dropped bigint NOT NULL DEFAULT 0, seen    timestamptz NOT NULL DEFAULT now() );
--;
CREATE TABLE rate_limit_retention ( what   text PRIMARY KEY, keep   interval NOT NULL, set_by text, set_at timestamptz NOT NULL DEFAULT now(), upkeep_at timestamptz, CONSTRAINT what_must_be_audit_or_metrics_of_minute_hour_or_day
		CHECK (what IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day')), CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day') );
--;
INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '90 days'), ('metrics_minute', '7 days'), ('metrics_hour', '90 days'), ('metrics_day', '7 years');
--;
CREATE TABLE rate_limit_tiers ( tier    text PRIMARY KEY, rank    bigint NOT NULL DEFAULT 0, comment text, CONSTRAINT tier_must_be_1_to_100_characters_without_spaces_or_slashes CHECK (tier ~ '^[^/[:space:][:cntrl:]]{1,100}$') );
--;
INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ('anonymous', -1, 'requests with neither an API key nor a user');
--;
CREATE TABLE rate_limit_users ( user_id      text PRIMARY KEY, tier         text NOT NULL CONSTRAINT tier_must_be_in_rate_limit_tiers REFERENCES rate_limit_tiers ON UPDATE CASCADE, tier_until   timestamptz NOT NULL DEFAULT 'infinity',
	period_start date, time_zone    text NOT NULL DEFAULT 'UTC', comment      text, created_at   timestamptz NOT NULL DEFAULT now(), updated_at   timestamptz NOT NULL DEFAULT now(), parent       text, parent_level int,
	level        int NOT NULL DEFAULT 1, counted_as   text, CONSTRAINT level_must_be_one_more_than_parent_level CHECK (level = coalesce(parent_level, 0) + 1), CONSTRAINT parent_must_not_be_below_the_user_or_make_more_than_four_levels
		CHECK (CASE WHEN num_nulls(parent, parent_level) = 0 THEN parent_level BETWEEN 1 AND 3 AND parent <> user_id ELSE num_nulls(parent, parent_level) = 2 END),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512), CONSTRAINT period_start_must_be_a_day_from_1900_to_2999 CHECK (period_start BETWEEN '1900-01-01' AND '2999-12-31') );
--;
CREATE INDEX rate_limit_users_tier ON rate_limit_users (tier);
--;
CREATE UNIQUE INDEX rate_limit_users_level ON rate_limit_users (user_id, level);
--;
CREATE UNIQUE INDEX rate_limit_users_must_count_by_different_names ON rate_limit_users (coalesce(counted_as, user_id));
--;
ALTER TABLE rate_limit_users ADD CONSTRAINT parent_must_be_in_rate_limit_users FOREIGN KEY (parent, parent_level) REFERENCES rate_limit_users (user_id, level) ON UPDATE CASCADE ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED;
--;
CREATE INDEX rate_limit_users_parent ON rate_limit_users (parent) WHERE parent IS NOT NULL;
--;
CREATE INDEX rate_limit_users_time_zone ON rate_limit_users (time_zone) WHERE time_zone <> 'UTC';
--;
CREATE INDEX rate_limit_users_tier_until ON rate_limit_users (tier_until) WHERE tier_until < 'infinity';
--;
CREATE TABLE rate_limit_api_keys ( id          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, digest      bytea NOT NULL CONSTRAINT rate_limit_api_keys_digest_must_be_new UNIQUE, hint        text, name        text,
	user_id     text NOT NULL CONSTRAINT user_id_must_be_in_rate_limit_users REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE, tier        text CONSTRAINT tier_must_be_in_rate_limit_tiers
		REFERENCES rate_limit_tiers ON UPDATE CASCADE, expires_at  timestamptz NOT NULL DEFAULT 'infinity', revoked_at  timestamptz, revoked_by  text, replaced_by bigint CONSTRAINT replaced_by_must_be_the_id_of_a_key
		REFERENCES rate_limit_api_keys ON DELETE SET NULL, counted_as  bigint CONSTRAINT counted_as_must_be_the_id_of_a_key REFERENCES rate_limit_api_keys ON DELETE SET NULL, created_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT id_must_be_above_0 CHECK (id > 0), CONSTRAINT digest_must_be_a_sha256_of_32_bytes CHECK (octet_length(digest) = 32), CONSTRAINT hint_must_not_be_long_enough_to_be_a_key CHECK (length(hint) <= 16),
	CONSTRAINT name_must_have_1_to_200_characters CHECK (length(name) BETWEEN 1 AND 200), CONSTRAINT revoked_by_needs_revoked_at CHECK (revoked_by IS NULL OR revoked_at IS NOT NULL),
	CONSTRAINT replaced_by_must_be_another_key CHECK (replaced_by <> id) );
--;
CREATE INDEX rate_limit_api_keys_user_id ON rate_limit_api_keys (user_id);
--;
CREATE TABLE rate_limit_prices ( model             text NOT NULL, valid             tstzrange NOT NULL DEFAULT '(,)', input             numeric NOT NULL, cache_read        numeric, cache_write       numeric,
	output            numeric NOT NULL, above             bigint, above_input       numeric, above_cache_read  numeric, above_cache_write numeric, above_output      numeric, max_output        bigint, comment           text,
	created_at        timestamptz NOT NULL DEFAULT now(), updated_at        timestamptz NOT NULL DEFAULT now(), parts             text[], tiers             text[], source            text, PRIMARY KEY (model, valid),
	CONSTRAINT model_must_be_a_name_that_may_end_in_an_asterisk CHECK (model ~ '^([^*[:cntrl:]]{1,199}|[^*[:cntrl:]]{0,199}[*])$'), CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)),
	CONSTRAINT above_must_be_1_to_9007199254740992 CHECK (above BETWEEN 1 AND 9007199254740992), CONSTRAINT above_needs_above_input_and_above_output CHECK (num_nonnulls(above, above_input, above_output) IN (0, 3)),
	CONSTRAINT above_cache_read_needs_above CHECK (above_cache_read IS NULL OR above IS NOT NULL), CONSTRAINT above_cache_write_needs_above CHECK (above_cache_write IS NULL OR above IS NOT NULL),
	CONSTRAINT max_output_must_be_1_to_9007199254740992 CHECK (max_output BETWEEN 1 AND 9007199254740992), CONSTRAINT parts_must_be_prices_of_parts_as_the_documentation_names_them
		CHECK (rate_limit_each_matches(parts, '^(cache_read|cache_write|cache_write_1h|audio_input|audio_cache_read|audio_output|image_input|image_output|search|request|(input|output|cache_read|'
			'cache_write|cache_write_1h|audio_input|audio_cache_read|audio_output|image_input|image_output|search|request)@[1-9][0-9]{0,14})=(1000000000|[0-9]{1,9}([.][0-9]{1,12})?)$')),
	CONSTRAINT parts_must_have_each_name_once_and_none_that_has_a_column CHECK (concat_ws(',', CASE WHEN cache_read IS NOT NULL THEN 'cache_read=' END, CASE WHEN cache_write IS NOT NULL THEN 'cache_write=' END, array_to_string(parts, ','))
		!~ '(^|,)([^=]+=)[^,]*(,.*)?,\2' AND (above IS NULL OR NOT array_to_string(parts, ',') ~ '@')), CONSTRAINT tiers_must_be_factors_or_prices_that_the_documentation_names CHECK (rate_limit_each_matches(tiers, '^[a-z][a-z0-9_-]{0,39}'
			'([.](input|output|cache_read|cache_write|cache_write_1h|audio_input|audio_cache_read|audio_output|image_input|image_output|search|request)(@[1-9][0-9]{0,14})?)?=(1000000000|[0-9]{1,9}([.][0-9]{1,12})?)$')),
	CONSTRAINT tiers_must_have_each_name_once CHECK (array_to_string(tiers, ',') !~ '(^|,)([^=]+=)[^,]*(,.*)?,\2') );
--;
DO $$
DECLARE
	price text;
BEGIN
	FOREACH price IN ARRAY '{input,cache_read,cache_write,output,above_input,above_cache_read,above_cache_write,above_output}'::text[] LOOP
		EXECUTE format('ALTER TABLE rate_limit_prices ADD CONSTRAINT %I CHECK (%I BETWEEN 0 AND 1000000000)', price || '_must_be_0_to_1000000000', price);
	END LOOP;
END $$;
--;
CREATE TABLE rate_limit_rules ( name        text PRIMARY KEY, family      text, priority    bigint NOT NULL DEFAULT 100, mode        text NOT NULL DEFAULT 'enforce', action      text NOT NULL DEFAULT 'limit', hosts       text[],
	paths       text[], methods     text[], networks    cidr[], tiers       text[], count_by    text[] NOT NULL DEFAULT '{user}', without_header text NOT NULL DEFAULT 'share', valid       tstzrange NOT NULL DEFAULT '(,)',
	cost        bigint NOT NULL DEFAULT 1, settle      text, status      bigint, message     text, retry_after interval, comment     text, created_at  timestamptz NOT NULL DEFAULT now(), created_by  text NOT NULL DEFAULT session_user,
	updated_at  timestamptz NOT NULL DEFAULT now(), counted_as  text, CONSTRAINT rate_limit_rules_of_a_family_must_have_different_priorities UNIQUE (family, priority) DEFERRABLE, CONSTRAINT rate_limit_rules_must_count_by_different_names
		EXCLUDE USING btree ((coalesce(counted_as, name)) WITH =) DEFERRABLE, CONSTRAINT counted_as_must_be_1_to_120_letters_digits_or_dots_dashes CHECK (counted_as ~ '^[A-Za-z0-9._-]{1,120}$'),
	CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'), CONSTRAINT family_must_be_null_or_a_name_like_that_of_a_rule CHECK (family ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT mode_must_be_enforce_or_shadow_or_off CHECK (mode IN ('enforce', 'shadow', 'off')), CONSTRAINT action_must_be_limit_or_block_or_exempt CHECK (action IN ('limit', 'block', 'exempt')),
	CONSTRAINT hosts_must_be_null_or_names_without_ports_as_in_example_com CHECK (rate_limit_each_matches(hosts, '^((\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|(?=.*:.*:)([0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\]))$')),
	CONSTRAINT paths_must_be_null_or_begin_with_slash_and_have_whole_wildcards CHECK (rate_limit_each_matches(paths, '^(/(\*|[^/*[:cntrl:]]*))+$')), CONSTRAINT paths_must_not_have_empty_or_dot_segments_or_escapes_or_queries
		CHECK (rate_limit_each_matches(paths, '^(/|(/(?!\.{1,2}(/|$))([^/?\\%]|%(?![0-9A-Fa-f]{2}))+)+/?)$')), CONSTRAINT methods_must_be_null_or_names_such_as_get CHECK (rate_limit_each_matches(methods, '^[A-Za-z][A-Za-z-]{0,31}$')),
	CONSTRAINT networks_must_be_null_or_a_list_without_nulls CHECK (cardinality(networks) > 0 AND array_ndims(networks) = 1 AND num_nulls(VARIADIC networks) = 0), CONSTRAINT tiers_must_be_null_or_names_of_tiers
		CHECK (rate_limit_each_matches(tiers, '^[^/[:space:][:cntrl:]]{1,100}$')), CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all CHECK (rate_limit_each_matches(count_by, '^(all|((user|key|tier|ip|ip/128|host|route|'
			'header:[A-Za-z0-9!#$%&''*+.^_~-]+)(\|(?!$)|$))+)$')), CONSTRAINT count_by_all_must_stand_alone CHECK (cardinality(count_by) = 1 OR 'all' <> ALL (count_by)),
	CONSTRAINT count_by_must_have_each_name_once CHECK (rate_limit_each_once(count_by)), CONSTRAINT without_header_must_be_share_or_skip_or_refuse CHECK (without_header IN ('share', 'skip', 'refuse')),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)), CONSTRAINT cost_must_be_1_to_9007199254740992 CHECK (cost BETWEEN 1 AND 9007199254740992), CONSTRAINT settle_must_be_header_or_bytes_or_json_or_status CHECK (settle ~
		'^(bytes|header [A-Za-z0-9!#$%&''*+.^_|~-]+|json [^[:space:][:cntrl:].]+(\.[^[:space:][:cntrl:].]+)*|status [1-5][0-9]{2}( [1-5][0-9]{2})* = [0-9]{1,15}, else [0-9]{1,15})$'),
	CONSTRAINT settle_must_take_a_header_of_its_own_that_clients_do_not_need CHECK (settle !~* ('^header (grpc-.*|content-.*|access-control-.*|sec-.*|proxy-.*|set-cookie|'
			'trailer|transfer-encoding|connection|keep-alive|upgrade|te|date|location|vary|etag|last-modified|cache-control|expires|age|pragma|allow|accept-ranges|www-authenticate|'
			'authorization|retry-after|strict-transport-security|link|server|via|warning)$')), CONSTRAINT status_must_be_400_to_599 CHECK (status BETWEEN 400 AND 599),
	CONSTRAINT message_must_have_at_most_4096_bytes CHECK (octet_length(message) <= 4096), CONSTRAINT retry_after_must_be_0_to_36525_days_without_months CHECK (
		date_trunc('month', retry_after) = '0' AND retry_after BETWEEN interval '0' AND interval '36525 days') );
--;
CREATE TABLE rate_limit_rule_limits ( rule      text NOT NULL CONSTRAINT rule_must_be_in_rate_limit_rules REFERENCES rate_limit_rules ON UPDATE CASCADE ON DELETE CASCADE, name      text NOT NULL,
	algorithm text NOT NULL DEFAULT 'sliding_window', events    bigint, per       interval, calendar  text, time_zone text, burst     bigint, durable   boolean, on_exceed text NOT NULL DEFAULT 'refuse',
	unit      text NOT NULL DEFAULT 'requests', output    bigint, batches   text NOT NULL DEFAULT 'refuse', fields    boolean NOT NULL DEFAULT true, notify    bigint[], counted_as text, PRIMARY KEY (rule, name),
	CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'), CONSTRAINT algorithm_must_be_one_that_the_documentation_names
		CHECK (algorithm IN ('sliding_window', 'fixed_window', 'token_bucket', 'sliding_log', 'gcra', 'in_flight')), CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT events_of_sliding_log_must_be_at_most_1000 CHECK (algorithm <> 'sliding_log' OR events <= 1000), CONSTRAINT events_of_in_flight_must_be_at_most_1000 CHECK (algorithm <> 'in_flight' OR events <= 1000),
	CONSTRAINT exactly_one_of_per_and_calendar_must_be_given CHECK (num_nonnulls(per, calendar) = CASE algorithm WHEN 'in_flight' THEN 0 ELSE 1 END), CONSTRAINT per_must_be_1_ms_to_36525_days_without_months CHECK (
		date_trunc('month', per) = '0' AND per BETWEEN interval '1 ms' AND interval '36525 days'), CONSTRAINT calendar_must_be_day_or_week_or_month_or_year CHECK (calendar IN ('day', 'week', 'month', 'year')),
	CONSTRAINT calendar_needs_fixed_window CHECK (calendar IS NULL OR algorithm = 'fixed_window'), CONSTRAINT time_zone_needs_calendar CHECK (time_zone IS NULL OR calendar IS NOT NULL),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992), CONSTRAINT burst_needs_token_bucket_or_gcra CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'gcra')),
	CONSTRAINT gcra_must_have_burst_times_per_in_microseconds_up_to_2_pow_62 CHECK (algorithm <> 'gcra' OR greatest(coalesce(burst, events), events)::numeric * (extract(epoch FROM per) * 1000000) <= 4611686018427387904),
	CONSTRAINT gcra_must_drain_a_full_burst_within_36525_days CHECK (algorithm <> 'gcra' OR events = 0 OR coalesce(burst, events)::numeric * extract(epoch FROM per) <= events::numeric * 3155760000),
	CONSTRAINT on_exceed_must_be_refuse_or_overage CHECK (on_exceed IN ('refuse', 'overage')), CONSTRAINT overage_needs_fixed_window_or_sliding_window CHECK (on_exceed <> 'overage' OR algorithm IN ('fixed_window', 'sliding_window')),
	CONSTRAINT unit_must_be_one_that_the_documentation_names CHECK (unit IN ('requests', 'tokens', 'input_tokens', 'output_tokens', 'money')), CONSTRAINT unit_other_than_requests_needs_fixed_window_or_sliding_window
		CHECK (unit = 'requests' OR algorithm IN ('fixed_window', 'sliding_window')), CONSTRAINT output_must_be_1_to_9007199254740992 CHECK (output BETWEEN 1 AND 9007199254740992),
	CONSTRAINT output_needs_unit_of_tokens CHECK (output IS NULL OR unit <> 'requests'), CONSTRAINT batches_must_be_refuse_or_pass CHECK (batches IN ('refuse', 'pass')),
	CONSTRAINT batches_need_unit_of_tokens CHECK (batches = 'refuse' OR unit <> 'requests'), CONSTRAINT notify_needs_fixed_window CHECK (notify IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT notify_must_have_1_to_10_percentages_from_1_to_1000 CHECK (rate_limit_each_matches(notify::text[], '^([1-9][0-9]{0,2}|1000)$') AND rate_limit_each_once(notify::text[]) AND cardinality(notify) <= 10) );
--;
CREATE TABLE rate_limit_overrides ( id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, rule       text NOT NULL, limit_name text NOT NULL,
	tier       text CONSTRAINT tier_must_be_in_rate_limit_tiers REFERENCES rate_limit_tiers ON UPDATE CASCADE ON DELETE CASCADE, user_id    text CONSTRAINT user_id_must_be_in_rate_limit_users
		REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE, key_id     bigint CONSTRAINT key_id_must_be_in_rate_limit_api_keys REFERENCES rate_limit_api_keys ON UPDATE CASCADE ON DELETE CASCADE, events     bigint, burst      bigint,
	valid      tstzrange NOT NULL DEFAULT '(,)', reason     text, created_at timestamptz NOT NULL DEFAULT now(), created_by text NOT NULL DEFAULT session_user,
	CONSTRAINT rule_and_limit_name_must_be_in_rate_limit_rule_limits FOREIGN KEY (rule, limit_name) REFERENCES rate_limit_rule_limits ON UPDATE CASCADE ON DELETE CASCADE, CONSTRAINT exactly_one_of_tier_user_id_and_key_id_must_be_given
		CHECK (num_nonnulls(tier, user_id, key_id) = 1), CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992), CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)) );
--;
CREATE UNIQUE INDEX rate_limit_overrides_must_differ_in_more_than_the_amount ON rate_limit_overrides (rule, limit_name, tier, user_id, key_id, valid) NULLS NOT DISTINCT;
--;
DO $$
DECLARE
	source record;
BEGIN
	FOR source IN SELECT t.name, part FROM (VALUES ('api_keys', '{replaced_by,counted_as,tier}'::text[]), ('overrides', '{tier,user_id,key_id}')) AS t(name, parts), unnest(t.parts) AS part
	LOOP
		EXECUTE format('CREATE INDEX rate_limit_%1$s_%2$s ON rate_limit_%1$s (%2$s)
			WHERE %2$s IS NOT NULL', source.name, source.part);
	END LOOP;
END $$;
--;
CREATE TABLE rate_limit_bans ( id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, network    cidr CONSTRAINT rate_limit_bans_network_must_not_be_banned_twice UNIQUE,
	user_id    text CONSTRAINT rate_limit_bans_user_id_must_not_be_banned_twice UNIQUE, key_id     bigint CONSTRAINT rate_limit_bans_key_id_must_not_be_banned_twice UNIQUE
		CONSTRAINT key_id_must_be_in_rate_limit_api_keys REFERENCES rate_limit_api_keys ON UPDATE CASCADE ON DELETE CASCADE, until      timestamptz NOT NULL DEFAULT 'infinity', reason     text, banned_at  timestamptz NOT NULL DEFAULT now(),
	banned_by  text NOT NULL DEFAULT session_user, CONSTRAINT exactly_one_of_network_user_id_and_key_id_must_be_given CHECK (num_nonnulls(network, user_id, key_id) = 1),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512) );
--;
CREATE INDEX rate_limit_bans_until ON rate_limit_bans (until);
--;
CREATE TABLE rate_limit_changes ( seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid    xid8 NOT NULL DEFAULT pg_current_xact_id(), kind   text NOT NULL, ref    text, at     timestamptz NOT NULL DEFAULT now(), by     text NOT NULL,
	before jsonb, after  jsonb, CONSTRAINT kind_must_be_what_a_table_holds CHECK (kind IN ('tier', 'user', 'key', 'rule', 'limit', 'override', 'ban', 'price')) );
--;
CREATE INDEX rate_limit_changes_xid ON rate_limit_changes (xid);
--;
CREATE INDEX rate_limit_changes_limit ON rate_limit_changes (ref, seq) WHERE kind = 'limit';
--;
CREATE INDEX rate_limit_changes_at ON rate_limit_changes (at);
--;
`

const sql0002_lost = `CREATE TABLE rate_limit_lost ( processes text, process   bigint, units     jsonb NOT NULL, found_at  timestamptz NOT NULL DEFAULT clock_timestamp(), reported_at   timestamptz, PRIMARY KEY (processes, process) );
--;
CREATE INDEX rate_limit_lost_reported_at ON rate_limit_lost (reported_at);
--;
`

const sql0003_forgotten = `CREATE TABLE rate_limit_forgotten ( digest bytea PRIMARY KEY, at     timestamptz NOT NULL DEFAULT now() );
--;
DROP FUNCTION IF EXISTS rate_limit_forget_person(text, bigint, text, inet, boolean, boolean);
--;
`

const sql0004_billing = `DROP FUNCTION IF EXISTS rate_limit_ledger_sum(text, date, date, text, text);
--;
`

const sql0005_notice_currency = `ALTER TABLE rate_limit_notices ADD COLUMN currency text;
--;
`

const sql0006_reset = `DROP FUNCTION IF EXISTS rate_limit_restart_windows(text, text[]);
--;
`

const sql0007_names = `DROP FUNCTION IF EXISTS rate_limit_user_of(text);
--;
DROP FUNCTION IF EXISTS rate_limit_came(uuid);
--;
DROP FUNCTION IF EXISTS rate_limit_open_totals(text, timestamptz, timestamptz, text, text, boolean);
--;
`

// Upgrade creates all tables, or upgrades tables of an older program in place, and keeps their rows. It
// changes nothing in tables of this program or of a newer one. It is one command, and can run at any time and
// in any number of processes.
const Upgrade = `
DO $migration$ DECLARE facts CONSTANT jsonb := '{"restricts":{},"tables":["rate_limit_ephemeral","rate_limit_durable","rate_limit_processes","rate_limit_ledger","rate_limit_grants","rate_limit_nodes","rate_limit_secrets","rate_limit_notices","rate_limit_ledger_retention","rate_limit_ledger_days","rate_limit_totals","rate_limit_audit","rate_limit_metrics","rate_limit_writers","rate_limit_retention","rate_limit_tiers","rate_limit_users","rate_limit_api_keys","rate_limit_prices","rate_limit_rules","rate_limit_rule_limits","rate_limit_overrides","rate_limit_bans","rate_limit_changes","rate_limit_lost","rate_limit_forgotten"]}';
	state record;
	owner oid;
	owners text;
	place regnamespace;
	command text;
	context text;
	detail text;
	hint text;
BEGIN SELECT s.* INTO state FROM (WITH a AS MATERIALIZED (SELECT (SELECT substring(p.prosrc FROM '\{.*\}')::jsonb FROM pg_proc p
	WHERE p.oid = to_regprocedure('rate_limit_about()')) AS about, coalesce((SELECT count(*) >= (b.about ->> 'triggers')::int AND bool_and(g.tgenabled <> 'D')
	FROM (SELECT (SELECT substring(p.prosrc FROM '\{.*\}')::jsonb FROM pg_proc p
	WHERE p.oid = to_regprocedure('rate_limit_about()')) AS about) b, pg_trigger g
	WHERE g.tgname LIKE 'rate\_limit\_%' AND g.tgname <> 'rate_limit_refuse_count'
		AND g.tgrelid IN (SELECT to_regclass(t) FROM jsonb_array_elements_text(b.about -> 'tables') t)
	GROUP BY b.about), false) AS whole), m AS MATERIALIZED (SELECT coalesce(array_agg(t), '{}') AS tables, coalesce(bool_or(t NOT IN
			('rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes')), false) AS others FROM a, jsonb_array_elements_text(a.about -> 'tables') t WHERE to_regclass(t) IS NULL),
s AS MATERIALIZED (SELECT a.about IS NOT NULL AND NOT (a.whole AND NOT m.others AND (SELECT count(*) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
			WHERE a.about -> 'keys' ? concat(c.relname, '.', k.conname) AND pg_table_is_visible(c.oid)) = (SELECT count(*) FROM jsonb_array_elements_text(a.about -> 'keys') AS k WHERE split_part(k, '.', 1) <> ALL (m.tables))) AS in_part,
	m.tables <> '{}' AND NOT m.others AS lacks, a.about IS NULL AND EXISTS (SELECT FROM pg_proc p WHERE p.proname = 'rate_limit_behind' AND pg_function_is_visible(p.oid)) AS unnumbered FROM a, m)
SELECT coalesce((a.about ->> 'number')::int, 0) AS number, coalesce((a.about ->> 'revision')::int, 0) AS revision, coalesce((a.about ->> 'oldest')::int, 0) AS oldest, s.in_part, s.lacks, s.unnumbered, CASE
		WHEN s.in_part THEN 'the tables are there in part, as during a restore and after one that has failed. If no restore is under way, repeat the restore, or drop all tables and functions of pg-ratelimit, and run schema.sql'
		WHEN s.unnumbered THEN 'the tables were made before 0.1.0: dump the rows that you need, and drop all tables and functions with names that begin with rate_limit_' WHEN a.about IS NULL THEN coalesce(
			(SELECT string_agg(format('the table %s.%I is of another program: rename it, or give pg-ratelimit a schema of its own, with CREATE SCHEMA limits, and search_path=limits in '
				'the DSN of all proxies and commands', c.relnamespace::regnamespace, c.relname), '; ' ORDER BY c.relname) FROM jsonb_array_elements_text('{"restricts":{},"tables":["rate_limit_ephemeral","rate_limit_durable","rate_limit_processes","rate_limit_ledger","rate_limit_grants","rate_limit_nodes","rate_limit_secrets","rate_limit_notices","rate_limit_ledger_retention","rate_limit_ledger_days","rate_limit_totals","rate_limit_audit","rate_limit_metrics","rate_limit_writers","rate_limit_retention","rate_limit_tiers","rate_limit_users","rate_limit_api_keys","rate_limit_prices","rate_limit_rules","rate_limit_rule_limits","rate_limit_overrides","rate_limit_bans","rate_limit_changes","rate_limit_lost","rate_limit_forgotten"]}'::jsonb -> 'tables') t JOIN pg_class c ON c.oid = to_regclass(t)
			WHERE t NOT IN ('rate_limit_ephemeral', 'rate_limit_durable') OR (SELECT count(*) FROM pg_attribute f WHERE f.attrelid = c.oid AND f.attname IN ('prefix', 'key', 'expires_at')) < 3),
			(SELECT string_agg(format('%s: the column %s has the type %s, must be %s: ALTER TABLE %1$s ALTER COLUMN %2$s TYPE %4$s', f.attrelid::regclass, f.attname, format_type(f.atttypid, f.atttypmod), w.type), '; ')
			FROM pg_attribute f JOIN (VALUES ('prefix', 'text'), ('key', 'text'), ('count', 'bigint'), ('prev_count', 'bigint'), ('window_start', 'timestamptz'), ('tokens', 'float8'), ('last_refill', 'timestamptz'), ('expires_at', 'timestamptz')
			) AS w(name, type) ON f.attname = w.name AND NOT f.attisdropped WHERE f.attrelid IN (to_regclass('rate_limit_ephemeral'), to_regclass('rate_limit_durable')) AND f.atttypid <> w.type::regtype)) END AS fault FROM a, s
) AS s;
	IF current_setting('server_version_num')::int < 150000 THEN RAISE feature_not_supported USING MESSAGE = format('pg-ratelimit needs PostgreSQL 15 or newer, and this server is %s', current_setting('server_version'));
	ELSIF state.fault IS NOT NULL THEN RAISE object_not_in_prerequisite_state USING MESSAGE = state.fault;
	ELSIF NOT (state.lacks AND state.revision = 41) AND (state.revision >= 41 OR state.number > 0 AND current_setting('pg_ratelimit.creates', true) = 'on') THEN RETURN;
	END IF;
	SELECT min(c.relowner), string_agg(DISTINCT c.relowner::regrole::text, ', '), min(c.relnamespace) INTO owner, owners, place FROM jsonb_array_elements_text(facts -> 'tables') AS t JOIN pg_class c ON c.oid = to_regclass(t);
	IF owners LIKE '%,%' OR NOT pg_has_role(owner, 'MEMBER') THEN RAISE insufficient_privilege USING MESSAGE = format('the tables belong to %s, and this session has '
			'the role %I: all must belong to one role, which this session has or is a member of. To change that: %s', owners, current_user, (SELECT string_agg(format('ALTER TABLE %s OWNER TO %I',
				c.oid::regclass, current_user), '; ') FROM jsonb_array_elements_text(facts -> 'tables') AS t JOIN pg_class c ON c.oid = to_regclass(t) WHERE c.relowner <> current_user::regrole));
	ELSIF owner <> current_user::regrole OR place::text <> quote_ident(current_schema()) THEN PERFORM set_config('search_path', (SELECT string_agg(quote_ident(s), ', ') FROM unnest((SELECT n.nspname FROM pg_namespace n WHERE n.oid = place)
				|| current_schemas(false)) AS s), true);
		PERFORM set_config('role', owner::regrole::text, true);
	END IF;
	PERFORM set_config('pg_ratelimit.had', ARRAY(SELECT oid FROM pg_class WHERE relname LIKE 'rate\_limit\_%' UNION ALL SELECT oid FROM pg_proc WHERE proname LIKE 'rate\_limit\_%')::text, true);
	IF state.number = 0 THEN CREATE FUNCTION rate_limit_about() RETURNS jsonb LANGUAGE sql IMMUTABLE AS 'SELECT NULL::jsonb';
	END IF;
	FOREACH command IN ARRAY string_to_array(concat( $file$CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false)
	FROM unnest(list) AS item);
--;
CREATE OR REPLACE FUNCTION rate_limit_each_once(list text[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN NOT EXISTS (SELECT FROM unnest(list) AS item, unnest(string_to_array(item, '|')) AS name
	GROUP BY lower(name) HAVING count(*) > 1);
--;
COMMENT ON FUNCTION rate_limit_each_matches IS 'Whether a list is non-empty and one-dimensional, and every element matches a regular expression. NULL: the list is NULL.';
--;
COMMENT ON FUNCTION rate_limit_each_once IS 'Whether all alternatives of all elements differ in more than case.';
--;
$file$,
		CASE WHEN state.number < 1 OR state.lacks THEN $file$` + sql0001_baselineshards + `$file$ END,
		CASE WHEN state.number < 1 THEN $file$` + sql0001_baseline + `$file$ END,
		CASE WHEN state.number < 2 THEN $file$` + sql0002_lost + `$file$ END,
		CASE WHEN state.number < 3 THEN $file$` + sql0003_forgotten + `$file$ END,
		CASE WHEN state.number < 4 THEN $file$` + sql0004_billing + `$file$ END,
		CASE WHEN state.number < 5 THEN $file$` + sql0005_notice_currency + `$file$ END,
		CASE WHEN state.number < 6 THEN $file$` + sql0006_reset + `$file$ END,
		CASE WHEN state.number < 7 THEN $file$` + sql0007_names + `$file$ END, $file$DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT c.relname AS view_name, a.attname AS column_name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND col_description(c.oid, a.attnum) IS NOT NULL
		WHERE c.relkind = 'v' AND c.relname LIKE 'rate\_limit\_%' AND pg_has_role(c.relowner, 'USAGE') AND c.relnamespace = to_regnamespace(quote_ident(current_schema()))
	LOOP
		EXECUTE format('COMMENT ON COLUMN %I.%I IS NULL', described.view_name, described.column_name);
	END LOOP;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_caller() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_may_read(VARIADIC tables text[]) RETURNS boolean LANGUAGE sql STABLE RETURN (SELECT bool_and(coalesce(has_table_privilege(to_regclass('rate_limit_' || t), 'SELECT'), false)) FROM unnest(tables) t);
--;
CREATE OR REPLACE FUNCTION rate_limit_is_for_all(function pg_proc) RETURNS boolean LANGUAGE sql STABLE RETURN $1.provolatile = 'i' OR $1.prosqlbody IS NOT NULL OR substr($1.proname, 12) IN ('behind',
	'billing_differs', 'calendars', 'counted_prefix', 'counters', 'exposed', 'has_applied', 'hidden', 'key_name', 'lineage', 'lost_units', 'override_of', 'price_age', 'read_report', 'refuse', 'reported_at',
	'rights', 'schemas', 'surplus', 'unknown_zones', 'unlimited', 'unpriced', 'vacuum_holders');
--;
CREATE OR REPLACE FUNCTION rate_limit_schemas() RETURNS oid[] LANGUAGE plpgsql STABLE AS $$
DECLARE
	own CONSTANT oid[] := ARRAY(SELECT relnamespace FROM pg_class WHERE oid = 'rate_limit_grants'::regclass);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NULL THEN
		RETURN own;
	END IF;
	RETURN own || ARRAY(SELECT n.oid FROM rate_limit_shards() s JOIN pg_namespace n ON n.nspname = s.schema);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_rights(kind text DEFAULT NULL)
	RETURNS TABLE (kinds text[], privileges text, object text, owner oid) LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas CONSTANT oid[] := rate_limit_schemas();
BEGIN
	RETURN QUERY SELECT r.kinds, r.privileges, o.object, o.owner FROM (VALUES ('{proxy}'::text[], '{ephemeral,durable,processes,shard/ephemeral,shard/durable,shard/processes}'
			::text[], 'SELECT, INSERT, UPDATE, DELETE'),
		('{proxy}', '{ledger}', 'SELECT (id), INSERT (day, id, time, user_id, key_id, ancestors, model, input, cache_read, cache_write, output, money, charges, cache_write_1h, audio_input, '
			'audio_cache_read, audio_output, image_input, image_output, search, estimated_input, '
			'estimated_output, estimated_money, remainder, tier, answered, price, price_valid, lines)'),
		('{proxy}', '{shard/ledger}', 'SELECT, INSERT'),
		('{proxy}', '{secrets,tiers,users,api_keys,rules,rule_limits,overrides,bans,prices}', 'SELECT'),
		('{proxy}', '{changes}', 'SELECT (seq, xid, kind, ref)'),
		('{proxy}', '{begin_batch,drop_expired,forget,heartbeat,ledger_upkeep,live_proxies,lost_upkeep,notice,notice_upkeep,record_audit,record_metrics,retain,totals_upkeep,upkeep}', 'EXECUTE'),
		('{reader,administrator}', NULL, 'SELECT'),
		('{reader,administrator}', NULL, 'EXECUTE'),
		('{administrator}', '{tiers,users,api_keys,rules,rule_limits,overrides,bans,prices}', 'INSERT, UPDATE, DELETE'),
		('{administrator}', '{ephemeral,durable}', 'DELETE, UPDATE (ord)'),
		('{administrator}', '{shard/ephemeral,shard/durable}', 'DELETE, UPDATE'),
		('{administrator}', '{retention}', 'UPDATE (keep, set_by, set_at)'),
		('{administrator}', '{ledger_retention}', 'UPDATE (keep, currency)'),
		('{administrator}', '{notices}', 'UPDATE (taken_at, tried_at, try_at, error)'),
		('{administrator}', '{correct,drop_expired,ledger_upkeep,reset_counters,totals_upkeep,upkeep}', 'EXECUTE')
	) AS r(kinds, names, privileges) JOIN ( SELECT CASE c.relnamespace WHEN schemas[1] THEN '' ELSE 'shard/' END || substr(c.relname, 12) AS name,
			c.oid::regclass::text AS object, c.relowner AS owner, false AS is_function,
			c.relname !~ '_(secrets|forgotten)$|[0-9]' AS is_read
		FROM pg_class c WHERE c.relnamespace = ANY (schemas) AND c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
		UNION ALL
		SELECT substr(p.proname, 12), 'FUNCTION ' || p.oid::regprocedure, p.proowner, true, NOT p.prosecdef
		FROM pg_proc p WHERE p.pronamespace = schemas[1] AND p.proname LIKE 'rate\_limit\_%' AND p.prokind = 'f' AND NOT rate_limit_is_for_all(p)
	) AS o ON o.is_function = (r.privileges = 'EXECUTE') AND coalesce(o.name = ANY (r.names), o.is_read)
	WHERE $1 IS NULL OR $1 = ANY (r.kinds)
	UNION ALL
	SELECT NULL, 'USAGE', format('SCHEMA %I', n.nspname), n.nspowner FROM pg_namespace n
	WHERE n.oid = ANY (schemas) AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v') AND c.relname NOT LIKE 'rate\_limit\_%');
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_surplus(ids oid[] DEFAULT NULL) RETURNS TABLE (role text, privilege text, object text, grantable boolean, grantor text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas CONSTANT oid[] := rate_limit_schemas();
BEGIN
	RETURN QUERY WITH relations AS MATERIALIZED (SELECT c.* FROM pg_class c WHERE c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p', 'v', 'S')
			AND (c.oid = ANY (ids) OR ids IS NULL AND c.relnamespace = ANY (schemas))
	), columns AS MATERIALIZED (SELECT * FROM pg_attribute WHERE attacl IS NOT NULL
	), granted AS MATERIALIZED ( SELECT g.role, r.object, r.privileges FROM rate_limit_rights() r JOIN rate_limit_grants g ON g.kind = ANY (r.kinds)
	)
	SELECT coalesce(r.rolname::text, 'public'), a.privilege_type || coalesce(' (' || quote_ident(o.name) || ')', ''), o.object, a.is_grantable,
		CASE WHEN a.grantor <> o.owner THEN a.grantor::regrole::text END
	FROM ( SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass AS object, NULL::name AS name, c.relowner AS owner, c.relacl AS acl FROM relations c WHERE c.relacl IS NOT NULL
		UNION ALL
		SELECT c.oid::regclass::text, t.attname, c.relowner, t.attacl FROM relations c JOIN columns t ON t.attrelid = c.oid
		UNION ALL
		SELECT 'FUNCTION ' || p.oid::regprocedure, NULL, p.proowner, ARRAY(SELECT e.acl FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) AS e (acl)
				WHERE NOT (rate_limit_is_for_all(p) AND e.acl::text LIKE '=%')) FROM pg_proc p
		WHERE p.proname LIKE 'rate\_limit\_%' AND p.prokind <> 'p' AND (p.oid = ANY (ids) OR ids IS NULL AND p.pronamespace = schemas[1] AND NOT rate_limit_is_for_all(p))
	) AS o CROSS JOIN aclexplode(o.acl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee
	WHERE pg_has_role(r.oid, o.owner, 'USAGE') IS NOT TRUE AND NOT EXISTS (SELECT FROM granted g WHERE g.role = r.rolname AND g.object = o.object AND a.grantor = o.owner AND NOT a.is_grantable
			AND (a.privilege_type = ANY (string_to_array(g.privileges, ', ')) OR o.name = ANY (string_to_array(substring(g.privileges FROM a.privilege_type || ' \(([^)]*)'), ', '))));
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_strip(ids oid[], role text DEFAULT NULL) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	FOR it IN SELECT s.role, s.object, string_agg(s.privilege, ', ') AS privileges FROM rate_limit_surplus($1) s WHERE s.role = coalesce($2, s.role) GROUP BY 1, 2
	LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I CASCADE', it.privileges, it.object, it.role);
	END LOOP;
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_grant(role text, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	IF ($2 IN ('proxy', 'administrator', 'reader')) IS NOT TRUE THEN
		RAISE EXCEPTION 'kind: %: must be proxy, administrator or reader', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1) THEN
		RAISE EXCEPTION 'role: %: there is no such role', to_json($1) USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT * FROM rate_limit_rights($2) r WHERE pg_has_role(r.owner, 'USAGE') LOOP
		EXECUTE format('GRANT %s ON %s TO %I', it.privileges, it.object, $1);
	END LOOP;
	INSERT INTO rate_limit_grants VALUES ($1, $2) ON CONFLICT DO NOTHING;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_revoke(role text, kind text DEFAULT NULL) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	it record;
	kept text;
BEGIN
	DELETE FROM rate_limit_grants g WHERE (g.role, g.kind) = ($1, $2);
	IF NOT FOUND AND ($2 IS NOT NULL OR NOT rate_limit_strip(NULL, $1)) THEN
		RAISE EXCEPTION 'role: %: rate_limit_grant has given it %', to_json($1), coalesce('no rights of the kind ' || to_json($2), 'all rights that it has') USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT t.* FROM rate_limit_rights($2) t, pg_roles r WHERE r.rolname = $1 AND $2 IS NOT NULL AND pg_has_role(t.owner, 'USAGE') LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I CASCADE', it.privileges, it.object, $1);
	END LOOP;
	FOR it IN WITH RECURSIVE surplus AS MATERIALIZED (SELECT * FROM rate_limit_surplus() s WHERE s.grantor IS NOT NULL ), through AS (
			SELECT s.privilege, s.object, s.grantor FROM surplus s WHERE s.role = $1
			UNION SELECT s.privilege, s.object, s.grantor FROM through t JOIN surplus s ON quote_ident(s.role) = t.grantor AND (s.privilege, s.object) = (t.privilege, t.object)
		) SELECT t.*, t.privilege LIKE '%(%' AS of_column FROM through t
	LOOP
		IF it.of_column THEN
			EXECUTE format('GRANT %s ON %s TO %s WITH GRANT OPTION', it.privilege, it.object, it.grantor);
		END IF;
		EXECUTE format('REVOKE %s %s ON %s FROM %s CASCADE', CASE WHEN NOT it.of_column THEN 'GRANT OPTION FOR' END, it.privilege, it.object, it.grantor);
	END LOOP;
	PERFORM rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role;
	SELECT string_agg(format('%s on %s', s.privilege, s.object) || coalesce(' from ' || s.grantor, ''), ', ')
		INTO kept FROM rate_limit_surplus() s WHERE s.role = $1 AND ($2 IS NULL OR s.grantor IS NOT NULL);
	IF kept IS NOT NULL THEN
		RAISE EXCEPTION 'role: %: it keeps %, which only the role that granted it can take back', to_json($1), kept USING ERRCODE = 'insufficient_privilege';
	END IF;
END $$;
--;
COMMENT ON TABLE rate_limit_grants IS 'The roles that have rights by rate_limit_grant. Each migration grants these rights again.';
--;
COMMENT ON COLUMN rate_limit_grants.role IS 'The role.';
--;
COMMENT ON COLUMN rate_limit_grants.kind IS 'proxy, administrator or reader.';
--;
COMMENT ON FUNCTION rate_limit_caller IS 'The calling role, even in a function with the rights of the owner.';
--;
COMMENT ON FUNCTION rate_limit_may_read IS 'Whether tables, by their names without rate_limit_, are in this database, and the role may read them.';
--;
COMMENT ON FUNCTION rate_limit_is_for_all IS 'Whether all roles may call a function.';
--;
COMMENT ON FUNCTION rate_limit_schemas IS 'The schema of the tables, and then the schemas of the shards.';
--;
COMMENT ON FUNCTION rate_limit_rights IS 'The rights of a kind of role, or of all, on tables, views and functions, and on a schema of their own.';
--;
COMMENT ON FUNCTION rate_limit_surplus IS 'The rights of roles on tables, columns, sequences and functions that rate_limit_grant has not granted.';
--;
COMMENT ON FUNCTION rate_limit_strip IS 'Takes back what rate_limit_surplus returns. Migrations and upkeep call it for what they create.';
--;
COMMENT ON FUNCTION rate_limit_grant IS 'Grants a role the rights of a proxy, of an administrator, who changes the policy, or of a reader, who reads all but secrets, and records that. Each migration grants them again. For the owner of the tables.';
--;
COMMENT ON FUNCTION rate_limit_revoke IS 'Takes back what rate_limit_grant gave, and what other roles granted, with the grant options for that. Rights that another kind of the role has too stay. Without kind: takes back all other rights.';
--;
CREATE OR REPLACE FUNCTION rate_limit_prefix(rule text, limit_name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'rule/' || rule || '/' || limit_name;
--;
CREATE OR REPLACE FUNCTION rate_limit_decimal(units bigint, unit text) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE unit WHEN 'money' THEN units * 0.000001 ELSE units END;
--;
COMMENT ON FUNCTION rate_limit_prefix IS 'The prefix of the counters of a limit, from the names by which it and its rule count.';
--;
COMMENT ON FUNCTION rate_limit_decimal IS 'A number of units as a number: with six decimals for money, and any other one unchanged.';
--;
DO $do$ BEGIN IF to_regprocedure('rate_limit_shards()') IS NULL THEN EXECUTE replace(replace($sql$ CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL)
RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz, remainder bigint, hits timestamptz[], slots bigint, held bigint,
	expires_at timestamptz) LANGUAGE sql STABLE AS $$
	SELECT c.key, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits,
		(SELECT count(*) FROM unnest(slots) s WHERE (s >> 32) = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR (s >> 32) - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -(s >> 32) <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[])), (SELECT least(coalesce(sum(v), 0), 2305843009213693952)::bigint FROM (SELECT held[i][1] AS s, held[i][2] AS v FROM generate_subscripts(held, 1) i) p WHERE v > 0 AND (s = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR s - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -s <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]))), c.expires_at
	FROM ( SELECT false AS durable, e.prefix, e.key, e.count::bigint, e.prev_count::bigint, e.window_start, e.tokens::float8, e.last_refill,
			e.remainder, e.hits, e.slots, e.held, e.expires_at FROM {schema}.rate_limit_ephemeral e
		UNION ALL
		SELECT true, d.prefix, d.key, d.count::bigint, d.prev_count::bigint, d.window_start, d.tokens::float8, d.last_refill,
			d.remainder, d.hits, d.slots, d.held, d.expires_at FROM {schema}.rate_limit_durable d
	) c WHERE c.prefix = $1 AND c.durable = $2 AND ($3 IS NULL OR c.key = ANY ($3))
$$;
$sql$, '{processes}', '{schema}.rate_limit_processes'), '{schema}', quote_ident(current_schema()));
	END IF;
END $do$;
--;
CREATE OR REPLACE FUNCTION rate_limit_counter_key(user_id text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN regexp_replace(replace(replace(user_id, '%', '%25'), ' ', '%20'), '^ip:', 'ip%3A');
--;
CREATE OR REPLACE FUNCTION rate_limit_key_forms(texts text[]) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY(SELECT n || t FROM unnest(texts) AS t, unnest('{"",1|,2|,3|,4|,5|,6|,7|,8|,9|}'::text[]) AS n);
--;
CREATE OR REPLACE FUNCTION rate_limit_stored_keys(key text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN array_remove(ARRAY[key, 'sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex'),
	substring(key FROM '^[1-9][|]') || 'sha256:' || encode(sha256(convert_to(substr(key, 3), 'UTF8')), 'hex')], NULL);
--;
CREATE OR REPLACE FUNCTION rate_limit_counter_tables() RETURNS TABLE (counters regclass, processes regclass)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	places text[] := '{""}';
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		places := ARRAY(SELECT quote_ident(p.schema) || '.' FROM rate_limit_shards() p ORDER BY p.shard);
	END IF;
	RETURN QUERY SELECT (s.place || t.name)::regclass, (s.place || 'rate_limit_processes')::regclass FROM unnest(places) AS s(place),
			unnest('{rate_limit_durable,rate_limit_ephemeral}'::text[]) AS t(name);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_counters(counters regclass, processes regclass, prefixes text[],
	keys text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	deleted bigint;
BEGIN
	EXECUTE format(replace($sql$WITH locked AS MATERIALIZED ( SELECT c.prefix, c.key FROM %1$s c JOIN unnest($1, $2) AS u(prefix, key) USING (prefix, key)
				ORDER BY c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c)
		DELETE FROM %1$s c USING locked l WHERE c.prefix = l.prefix AND c.key = l.key
			AND NOT EXISTS (SELECT FROM unnest(slots) s WHERE (s >> 32) = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR (s >> 32) - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -(s >> 32) <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]))$sql$, '{processes}', '%2$s'), $1, $2) USING $3, $4;
	GET DIAGNOSTICS deleted = ROW_COUNT;
	RETURN deleted;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_counted_prefix(prefix text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF starts_with($1, 'rule/') AND rate_limit_may_read('rules') THEN
		RETURN coalesce((SELECT rate_limit_prefix(coalesce(r.counted_as, r.name), coalesce(l.counted_as, split_part($1, '/', 3))) FROM rate_limit_rules r LEFT JOIN rate_limit_rule_limits l
				ON (l.rule, l.name) = (r.name, split_part($1, '/', 3))
			WHERE r.name = split_part($1, '/', 2)), $1);
	END IF;
	RETURN $1;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_reset_counters(prefix text, keys text[]) RETURNS bigint
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	t record;
	found record;
	gone bigint;
	reset bigint := 0;
BEGIN
	FOR t IN SELECT * FROM rate_limit_counter_tables() LOOP
		EXECUTE format('SELECT array_agg(l.prefix) FILTER (WHERE NOT l.stays) AS prefixes,
				array_agg(l.key) FILTER (WHERE NOT l.stays) AS keys, count(*) FILTER (WHERE l.stays) AS stay,
				(array_agg(l.slots) FILTER (WHERE l.slots <> ''{}''))[1:1] AS slots
			FROM (SELECT c.*, $3 AND c.window_start IS NOT NULL AND c.slots IS NULL AS stays FROM %s c
				WHERE c.prefix = $1 AND c.key = ANY ($2) ORDER BY c.key COLLATE "C" FOR UPDATE) l',
			t.counters) INTO found USING $1, $2, t.counters::text LIKE '%durable';
		IF found.stay > 0 THEN
			EXECUTE format('UPDATE %s c SET window_start = $3, count = 0, prev_count = c.prev_count * 0,
				remainder = NULL, held = NULL, tokens = NULL, last_refill = NULL, hits = NULL
				WHERE c.prefix = $1 AND c.key = ANY ($2) AND c.window_start IS NOT NULL AND c.slots IS NULL',
				t.counters) USING $1, $2, clock_timestamp();
		END IF;
		gone := rate_limit_delete_counters(t.counters, t.processes, found.prefixes, found.keys);
		reset := reset + found.stay + gone;
		IF gone < cardinality(found.keys) THEN
			RAISE EXCEPTION
				'the counter is of an in_flight limit, and running requests hold its slots: a reset would '
				'let more requests run than the limit. A slot is free when its request ends, or 10 seconds '
				'after its process was lost. To free the slots of a lost process now, run: UPDATE '
				'% SET seen = ''-infinity'' WHERE process IN (%)', t.processes,
				(SELECT string_agg(DISTINCT (s >> 32)::text, ', ') FROM unnest(found.slots) AS s WHERE s > 0)
				USING ERRCODE = 'object_in_use';
		END IF;
	END LOOP;
	RETURN reset;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_reset(prefix text, key text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN rate_limit_reset_counters(rate_limit_counted_prefix($1), rate_limit_stored_keys($2));
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_usage_of(algorithm text, events bigint, burst bigint, span bigint, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz, remainder bigint,
		hits timestamptz[], slots bigint, expires_at timestamptz, at timestamptz DEFAULT now()) RETURNS TABLE (used bigint, resets_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
	SELECT greatest(u.used, 0)::bigint, CASE WHEN u.used > 0 THEN CASE algorithm WHEN 'fixed_window' THEN coalesce(window_start + span * interval '1 us', expires_at) WHEN 'sliding_window' THEN window_start
				+ CASE WHEN t.passed < span THEN span ELSE 2 * span END * interval '1 us' WHEN 'sliding_log' THEN (SELECT min(hit) FROM unnest(hits) AS hit WHERE hit > t.oldest) + span * interval '1 us' WHEN 'in_flight' THEN NULL
			ELSE last_refill + least(CASE WHEN t.evenly THEN div((t.quota - b.had) * span + b.part + events - 1, events) ELSE (b.windows + ceil(u.used / events)) * span END, 2305843009213693952)::float8 * interval '1 us' END END FROM (
		SELECT coalesce(burst, events) AS quota, (algorithm = 'gcra' OR burst < events) IS TRUE AS evenly, 10000000 AS slack, (date_part('epoch', at - window_start) * 1000000)::bigint AS passed,
			(date_part('epoch', at - last_refill) * 1000000)::bigint AS drained, greatest(at, hits[cardinality(hits)]) - span * interval '1 us' AS oldest ) AS t, LATERAL (
		SELECT greatest(0, t.drained) / span AS windows, least(coalesce(remainder, 0), events - 1) AS part, floor(greatest(-least(t.quota, 4611686018427387904 / span - t.quota), least(t.quota, tokens)))::bigint::numeric AS had
	) AS b, LATERAL (SELECT CASE WHEN algorithm = 'fixed_window' AND span IS NULL THEN CASE WHEN expires_at > at AND window_start - at <= expires_at - window_start + t.slack * interval '1 us' THEN count END WHEN algorithm = 'fixed_window' THEN
			CASE WHEN t.passed < span AND t.passed >= -span - t.slack THEN count END WHEN algorithm = 'sliding_window' AND t.passed < span THEN CASE WHEN t.passed >= -span - t.slack THEN greatest(0, count) + div(greatest(0,
				prev_count)::numeric * (span - greatest(0, t.passed)) + span - 1, span) END WHEN algorithm = 'sliding_window' THEN CASE WHEN t.passed < 2 * span THEN div(greatest(0, count)::numeric * (2 * span - t.passed) + span - 1, span) END
		WHEN algorithm = 'sliding_log' THEN CASE WHEN hits[cardinality(hits)] <= at + (span + t.slack) * interval '1 us' THEN (SELECT count(*) FROM unnest(hits) AS hit WHERE hit > t.oldest) END WHEN algorithm = 'in_flight' THEN slots
		WHEN events = 0 OR events IS NULL THEN NULL WHEN t.evenly THEN CASE WHEN t.drained >= -div(t.quota::numeric * span + events - 1, events) - t.slack THEN t.quota - b.had
					- div(greatest(0, greatest(0, t.drained) * events::numeric - b.part), span) END WHEN t.drained >= -least(ceil(t.quota::numeric / events) * span, 3155760000000000) - t.slack
			THEN t.quota - floor(least(t.quota, tokens + b.windows::float8 * events))::bigint::numeric END::numeric AS used OFFSET 0) AS u;
END;
--;
COMMENT ON FUNCTION rate_limit_counters IS 'The counters of a prefix in the table of durable or of other counters. keys selects some of them. NULL: all. slots is the number of requests in flight, and held the tokens that running requests hold.';
--;
COMMENT ON FUNCTION rate_limit_counter_key IS 'The key of a user''s counters, as proxies write it.';
--;
COMMENT ON FUNCTION rate_limit_key_forms IS 'The forms of texts in the keys of counters: unchanged, and after the number of an alternative, as in 2|text.';
--;
COMMENT ON FUNCTION rate_limit_stored_keys IS 'The forms of a key in the tables of counters: the key, as lists show it, or its digest.';
--;
COMMENT ON FUNCTION rate_limit_counter_tables IS 'The tables of counters, each with the table of the processes that hold slots or units of its counters.';
--;
COMMENT ON FUNCTION rate_limit_delete_counters IS 'Deletes counters of a table, except counters with slots that running requests hold. Returns the number of deleted counters.';
--;
COMMENT ON FUNCTION rate_limit_counted_prefix IS 'The prefix of the counters of rule/RULE/LIMIT, which has the names by which the rule and the limit count. Any other prefix is returned unchanged.';
--;
COMMENT ON FUNCTION rate_limit_reset_counters IS 'Resets the counters of a prefix as it is stored, and of keys as they are stored, for rate_limit_reset.';
--;
COMMENT ON FUNCTION rate_limit_reset IS 'Deletes the counters of a prefix and a key, or sets them to 0, so that the full quota is available again. Returns their number. It fails while running requests hold slots of a counter.';
--;
COMMENT ON FUNCTION rate_limit_usage_of IS 'The units of a limit that a counter has used at a time. span is the window of the limit in microseconds; NULL for a calendar window and for in_flight. resets_at is the end of the window; for sliding_log, when the oldest request leaves the window; for token_bucket and gcra, when the full quota is available again. NULL: nothing is used, or the time is unknown.';
--;
CREATE OR REPLACE FUNCTION rate_limit_notice(counters jsonb) RETURNS bigint LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	made rate_limit_notices;
	n bigint := 0;
BEGIN
	FOR made IN INSERT INTO rate_limit_notices AS x (rule, limit_name, key, period, percent, used, quota, resets_at, currency)
		SELECT split_part(o.prefix, '/', 2), split_part(o.prefix, '/', 3), c.key, c.window_start, p.percent, rate_limit_decimal(c.count, o.unit), rate_limit_decimal(o.quota, o.unit), c.expires_at,
			(SELECT max(r.currency) FROM rate_limit_ledger_retention r WHERE o.unit = 'money')
		FROM jsonb_to_recordset($1) AS o(prefix text, key text, durable boolean, unit text, quota bigint, percents bigint[]) CROSS JOIN LATERAL rate_limit_counters(o.prefix, o.durable, ARRAY[o.key]) c
			CROSS JOIN LATERAL unnest(o.percents) AS p(percent)
		WHERE c.key COLLATE "C" = o.key AND o.quota > 0 AND c.count::numeric * 100 >= o.quota::numeric * p.percent AND c.window_start IS NOT NULL AND o.prefix LIKE 'rule/%/%'
		ORDER BY 1, 2, 3, 4, 5 ON CONFLICT DO NOTHING RETURNING x.*
	LOOP
		n := n + 1;
		PERFORM pg_notify('rate_limit_notices', json_build_object('rule', made.rule, 'limit', made.limit_name, 'key', left(made.key, 1000), 'period', made.period, 'percent', made.percent)::text);
	END LOOP;
	RETURN n;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_notice_upkeep() RETURNS bigint LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' SET jit = off AS $$
DECLARE
	until CONSTANT timestamptz := clock_timestamp() + interval '80 ms';
	size CONSTANT int := CASE WHEN to_regprocedure('rate_limit_shards()') IS NULL THEN 5000 END;
	place rate_limit_ledger_retention;
	lim record;
	slice record;
	looked boolean := false;
	made bigint := 0;
BEGIN
	IF to_regclass('rate_limit_rules') IS NULL THEN
		RETURN 0;
	ELSIF NOT EXISTS (SELECT FROM rate_limit_rule_limits WHERE notify IS NOT NULL) OR NOT pg_try_advisory_xact_lock(1885827695) THEN
		RETURN 0;
	END IF;
	UPDATE rate_limit_ledger_retention r SET noticed_at = now() WHERE noticed_at NOT BETWEEN now() - interval '5 s' AND now() + interval '5 s' RETURNING * INTO place;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	LOOP
		SELECT l.rule, l.name, l.unit, p.prefix, coalesce(l.durable, l.unit <> 'requests') AS durable, coalesce(l.burst, l.events) AS quota, CASE WHEN NOT EXISTS (SELECT FROM rate_limit_overrides o
				WHERE (o.rule, o.limit_name) = (l.rule, l.name)) THEN l.notify END AS percents,
			least(l.events, (SELECT min(o.events) FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = (l.rule, l.name)))::numeric * (SELECT min(n) FROM unnest(l.notify) n) AS low INTO lim
		FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule AND r.mode <> 'off' CROSS JOIN LATERAL (SELECT rate_limit_prefix(coalesce(r.counted_as, r.name),
				coalesce(l.counted_as, l.name)) COLLATE "C" AS prefix) p
		WHERE l.notify IS NOT NULL AND (p.prefix > place.noticed_limit OR p.prefix = place.noticed_limit AND place.noticed_key <> '') ORDER BY p.prefix LIMIT 1;
		IF NOT FOUND THEN
			EXIT WHEN looked OR place.noticed_limit = '';
			place.noticed_limit := '';
			CONTINUE;
		END IF;
		looked := true;
		place.noticed_key := CASE lim.prefix WHEN place.noticed_limit THEN place.noticed_key ELSE '' END;
		place.noticed_limit := lim.prefix;
		EXECUTE format('SELECT CASE WHEN count(*) = $1 THEN max(key) END AS last,
				array_agg(key ORDER BY key) FILTER (WHERE count::numeric * 100 >= $2
					AND ($4 IS NULL OR EXISTS (SELECT FROM unnest($4) p
						WHERE c.count::numeric * 100 >= $5::numeric * p AND NOT EXISTS (
							SELECT FROM rate_limit_notices n WHERE (n.rule, n.limit_name, n.key, n.period,
								n.percent, n.quota, n.void_at) = (split_part(%1$L, ''/'', 2),
								split_part(%1$L, ''/'', 3), c.key, c.window_start, p, $6, ''infinity'')))))
				AS keys
			FROM (SELECT c.key COLLATE "C" AS key, c.count, c.window_start
				FROM rate_limit_counters(%1$L, %2$L) c WHERE c.key COLLATE "C" >= $3
				ORDER BY c.key COLLATE "C" LIMIT %3$L) c',
			lim.prefix, lim.durable, size) INTO slice USING size, lim.low, place.noticed_key, lim.percents,
			lim.quota, rate_limit_decimal(lim.quota, lim.unit);
		IF size IS NOT NULL AND cardinality(slice.keys) > 200 THEN
			slice.keys := slice.keys[:200];
			slice.last := slice.keys[200];
		END IF;
		UPDATE rate_limit_notices v SET void_at = clock_timestamp() WHERE v.ctid = ANY (ARRAY( SELECT n.ctid FROM rate_limit_notices n
			WHERE (n.rule, n.limit_name) = (split_part(lim.prefix, '/', 2), split_part(lim.prefix, '/', 3)) AND n.key >= place.noticed_key AND (slice.last IS NULL OR n.key <= slice.last)
				AND n.void_at = 'infinity' AND n.resets_at > now() AND NOT EXISTS ( SELECT FROM rate_limit_counters(lim.prefix, lim.durable, ARRAY[n.key]) c
					WHERE c.key COLLATE "C" = n.key AND c.window_start = n.period AND rate_limit_decimal(c.count, lim.unit) * 100 >= n.quota * n.percent)
			FOR UPDATE OF n SKIP LOCKED));
		IF slice.keys IS NOT NULL THEN
			made := made + rate_limit_notice((SELECT coalesce(jsonb_agg(c), '[]') FROM rate_limit_noticed(lim.rule, lim.name, slice.keys) c));
		END IF;
		place.noticed_key := coalesce(slice.last || E'\x01', ''); -- the next possible key
		EXIT WHEN clock_timestamp() > until;
	END LOOP;
	UPDATE rate_limit_ledger_retention r SET noticed_limit = place.noticed_limit, noticed_key = place.noticed_key;
	RETURN made;
END $$;
--;
COMMENT ON TABLE rate_limit_notices IS 'Counters that have reached a percentage of their quota: one row in each period for each quota. notices deliver, or a job of yours, takes rows with FOR UPDATE SKIP LOCKED, and sets taken_at. A deleted row would come back.';
--;
COMMENT ON COLUMN rate_limit_notices.rule IS 'The rule, by the name by which it counts.';
--;
COMMENT ON COLUMN rate_limit_notices.limit_name IS 'The limit.';
--;
COMMENT ON COLUMN rate_limit_notices.key IS 'The key of the counter, such as the user.';
--;
COMMENT ON COLUMN rate_limit_notices.period IS 'When the window of the counter began.';
--;
COMMENT ON COLUMN rate_limit_notices.percent IS 'The percentage, one of notify of the limit.';
--;
COMMENT ON COLUMN rate_limit_notices.used IS 'What was used of the quota when the row was made.';
--;
COMMENT ON COLUMN rate_limit_notices.quota IS 'The quota of the counter.';
--;
COMMENT ON COLUMN rate_limit_notices.at IS 'When the row was made.';
--;
COMMENT ON COLUMN rate_limit_notices.resets_at IS 'When the window of the counter ends. NULL: it is not known.';
--;
COMMENT ON COLUMN rate_limit_notices.void_at IS 'When upkeep found that it is no longer true, since a reset or a correction has made used smaller: it may come again. infinity: it is true, or its window has ended.';
--;
COMMENT ON COLUMN rate_limit_notices.taken_at IS 'When the row was delivered, or a job of yours has taken it. NULL: not yet.';
--;
COMMENT ON COLUMN rate_limit_notices.id IS 'The idempotency key of each try to deliver the row.';
--;
COMMENT ON COLUMN rate_limit_notices.tried_at IS 'When it was first tried to deliver the row. NULL: not yet.';
--;
COMMENT ON COLUMN rate_limit_notices.try_at IS 'When notices deliver tries the row again. infinity: it failed for a day and is not tried again.';
--;
COMMENT ON COLUMN rate_limit_notices.currency IS 'The currency of money, as rate_limit_ledger_retention had it. NULL: no money, or it had none.';
--;
COMMENT ON COLUMN rate_limit_notices.error IS 'Why the last try failed. NULL: it did not.';
--;
COMMENT ON FUNCTION rate_limit_notice IS 'Makes the notices of counters, a list of objects with prefix, key, durable, unit, quota and percents, and returns how many are new. Each new one is also a notification of the channel rate_limit_notices.';
--;
COMMENT ON FUNCTION rate_limit_notice_upkeep IS 'Makes the notices that are missing, marks those that are no longer true, and returns how many are new. It runs at most every 5 seconds, stops after about 100 ms, and goes on there the next time. Proxies run it.';
--;
CREATE OR REPLACE FUNCTION rate_limit_ledgers() RETURNS SETOF text LANGUAGE sql STABLE AS $$
	SELECT format('%s.rate_limit_ledger', s.id::regnamespace)
	FROM unnest(rate_limit_schemas()) WITH ORDINALITY AS s(id, n) ORDER BY s.n
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_drop(ledger text, before date) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	old record;
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL lock_timeout = '100ms';
	FOR old IN SELECT c.oid::regclass AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = ledger::regclass AND c.relname ~ '_[0-9]{8}$'
			AND right(c.relname, 8)::date < before
	LOOP
		EXECUTE format('DROP TABLE %s', old.name);
	END LOOP;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_upkeep(also date DEFAULT NULL) RETURNS void LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
	first CONSTANT date := ((now() - (SELECT least(min(r.keep), interval '1000 years') FROM rate_limit_ledger_retention r)) AT TIME ZONE 'UTC')::date;
	days CONSTANT datemultirange := rate_limit_ledger_window(now(), now());
	late CONSTANT date := greatest(lower(days) + 1, least(upper(days) - 2, coalesce(also, today)));
	ledger text;
	day date;
	part text;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827694) THEN
		RETURN;
	END IF;
	PERFORM rate_limit_forget_again(); -- before it locks partitions
	FOR ledger IN SELECT * FROM rate_limit_ledgers() LOOP
		BEGIN
			FOREACH day IN ARRAY ARRAY[today - 1, today, today + 1, today + 2, late] LOOP
				part := ledger || to_char(day, '_YYYYMMDD');
				IF day = late AND rate_limit_is_closed(to_regclass(part)) THEN
					EXECUTE format('ALTER TABLE %s DROP CONSTRAINT day_is_summed', part);
					INSERT INTO rate_limit_ledger_days VALUES (day, false, now() + interval '1 hour') ON CONFLICT ON CONSTRAINT rate_limit_ledger_days_pkey
						DO UPDATE SET summed = false, open_until = excluded.open_until;
				END IF;
				CONTINUE WHEN to_regclass(part) IS NOT NULL;
				EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (id))', part, ledger);
				PERFORM rate_limit_strip(ARRAY[part::regclass::oid]);
				EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', ledger, part, day, day + 1);
			END LOOP;
		EXCEPTION WHEN lock_not_available THEN
			NULL;
		END;
		PERFORM rate_limit_ledger_drop(ledger, least(first, late));
	END LOOP;
	DELETE FROM rate_limit_totals t WHERE t.day < (SELECT min(p.day) FROM rate_limit_ledger_parts() p);
	DELETE FROM rate_limit_ledger_days d WHERE d.day < (SELECT min(p.day) FROM rate_limit_ledger_parts() p);
	DELETE FROM rate_limit_notices o WHERE o.ctid = ANY (ARRAY( SELECT n.ctid FROM rate_limit_notices n WHERE n.at < first AND NOT EXISTS ( SELECT FROM unnest('{f,t}'::boolean[]) AS d(durable),
				rate_limit_counters(rate_limit_prefix(n.rule, n.limit_name), d.durable, ARRAY[n.key]) c
			WHERE c.key COLLATE "C" = n.key AND c.window_start = n.period)
		FOR UPDATE OF n SKIP LOCKED));
END $$;
--;
COMMENT ON TABLE rate_limit_ledger_retention IS 'The retention of the ledger: one row. To change it: UPDATE rate_limit_ledger_retention SET keep = ''2 years''.';
--;
COMMENT ON COLUMN rate_limit_ledger_retention.keep IS 'Days that ended longer ago are dropped. 1,000 years: only an archive drops days.';
--;
COMMENT ON COLUMN rate_limit_ledger_retention.noticed_at IS 'When rate_limit_notice_upkeep has run.';
--;
COMMENT ON COLUMN rate_limit_ledger_retention.noticed_limit IS 'The prefix of the counters that it has read last.';
--;
COMMENT ON COLUMN rate_limit_ledger_retention.noticed_key IS 'The key at which it goes on. Empty: at the next limit.';
--;
COMMENT ON COLUMN rate_limit_ledger_retention.currency IS 'The code of the currency of the prices, such as EUR, for people. NULL: none. To name it: UPDATE rate_limit_ledger_retention SET currency = ''EUR''.';
--;
COMMENT ON FUNCTION rate_limit_ledgers IS 'The tables of the ledger, with their schemas: one, and on Citus one for each shard. On Citus, the first one has what was settled before there were shards.';
--;
COMMENT ON FUNCTION rate_limit_ledger_drop IS 'Drops the days of a ledger before a day, unless another session has locked one for more than 100 ms.';
--;
COMMENT ON FUNCTION rate_limit_ledger_upkeep IS 'Creates the partitions of the ledger for yesterday, today, the next two days, and another day within 7 days (also), which it opens for late settlements. Drops those past their retention, and forgets again who was forgotten. A proxy runs it each hour.';
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_parts() RETURNS TABLE (day date, summed boolean)
	LANGUAGE sql STABLE AS $$
	SELECT p.day, coalesce(d.summed, false)
	FROM (SELECT DISTINCT right(c.relname, 8)::date AS day FROM rate_limit_ledgers() l JOIN pg_inherits i ON i.inhparent = l::regclass
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relname ~ '_[0-9]{8}$') p
	LEFT JOIN rate_limit_ledger_days d ON d.day = p.day
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_window("from" timestamptz, until timestamptz) RETURNS datemultirange LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN datemultirange(daterange(($1 AT TIME ZONE 'UTC')::date - 8, ($2 AT TIME ZONE 'UTC')::date + 9));
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_source(days datemultirange, condition text)
	RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
	columns CONSTANT text[] := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'rate_limit_ledger'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum);
	parts text := (SELECT string_agg(replace(format('SELECT * FROM %s WHERE (%s) %s', l, coalesce((SELECT string_agg(format('day >= %L AND day < %L', lower(r), upper(r)), ' OR ')
				FROM unnest(days) r), 'false'), condition), '%', '%%') || ' %1$s', ' UNION ALL ')
		FROM rate_limit_ledgers() l);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		parts := format('SELECT day, id, ancestors, min(time) AS time, %s, jsonb_agg(charges) AS charges
			FROM (%s) l GROUP BY day, id, ancestors', (SELECT string_agg(format( '(array_agg(%1$I))[1] AS %1$I', c), ', ') FROM unnest(columns) c WHERE c <> ALL ('{day,id,ancestors,time,charges}')), parts);
	END IF;
	RETURN format('SELECT %s FROM (%s) l UNION ALL
		SELECT p.* FROM (%s) l, jsonb_array_elements(l.lines) WITH ORDINALITY AS a(one, n),
			LATERAL (SELECT (a.one ->> ''money'')::numeric AS m) m,
			jsonb_populate_record(NULL::rate_limit_ledger, a.one || jsonb_build_object(''day'', l.day,
				''id'', l.id, ''time'', l.time, ''user_id'', l.user_id, ''key_id'', l.key_id,
				''ancestors'', l.ancestors, ''kind'', l.kind, ''tier'', l.tier, ''answered'', l.answered,
				''corrects'', l.corrects, ''corrects_time'', l.corrects_time,
				''corrected_by'', l.corrected_by, ''reason'', l.reason,
				''lines'', a.n, ''money'', ceil(m),
				''remainder'', ((m - ceil(m)) * 1000)::smallint)) p',
		(SELECT string_agg('l.' || quote_ident(c), ', ' ORDER BY n) FROM unnest(columns) WITH ORDINALITY AS u(c, n)), format(parts, ''), format(parts, 'AND num_nonnulls(audio_input, '
			'audio_cache_read, audio_output, image_input, image_output, search, lines) > 0 '
			'AND lines IS NOT NULL'));
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_sums(source text, user_id text, by_limit boolean) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	own_unit CONSTANT text := '^(rule/.*):\d+$'; -- the names by which a limit counts, one for each unit
	sums text;
	nulls text;
BEGIN
	SELECT string_agg(format('sum(%1$I) AS %1$I', a.attname), ', ' ORDER BY a.attnum), string_agg(format('NULL::numeric AS %I', a.attname), ', ' ORDER BY a.attnum) INTO sums, nulls
		FROM pg_attribute a WHERE a.attrelid = 'rate_limit_totals'::regclass AND a.attnum > 13;
	RETURN format('SELECT g.day, row_number() OVER () * %1$s, u.u, u.above, u.own, g.settled, g.kind, g.model, g.prefix, g.unit, g.corrects, sum(g.requests)::bigint, sum(g.units), %2$s
		FROM (SELECT l.day, %3$s, (l.time AT TIME ZONE ''UTC'')::date AS settled, l.kind, %4$s,
			date_bin(''15 min'', l.corrects_time, ''2000-01-01Z'') AS corrects,
			count(l.charges) FILTER (WHERE l.kind = ''charge'') AS requests, %5$s
			FROM (%6$s) l %7$s GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) g, %8$s
		GROUP BY 1, 3, 4, 5, 6, 7, 8, 9, 10, 11',
		CASE WHEN by_limit THEN -1 ELSE 1 END, sums,
		CASE WHEN user_id IS NULL THEN 'l.user_id, l.ancestors' ELSE 'NULL AS user_id, NULL AS ancestors' END,
		CASE WHEN by_limit THEN 'NULL AS model, c.prefix, c.unit' ELSE 'l.model, NULL AS prefix, NULL AS unit' END,
		CASE WHEN by_limit THEN 'sum(c.units) AS units, ' || nulls ELSE 'NULL::numeric AS units, ' || sums END,
		source,
		CASE WHEN by_limit THEN format(', LATERAL (SELECT regexp_replace(c ->> ''prefix'', %L, ''\1'') AS prefix, c ->> ''unit'' AS unit, max((c ->> ''units'')::numeric) AS units
			FROM jsonb_path_query(l.charges, ''$[*][*]'') c GROUP BY 1, 2) c', own_unit) END,
		CASE WHEN user_id IS NULL THEN 'LATERAL (SELECT DISTINCT ON (u) coalesce(u, '''') AS u, g.ancestors[i:] AS above, '
				'i = 1 AS own FROM unnest(array_prepend(g.user_id, g.ancestors)) WITH ORDINALITY AS c(u, i) '
				'WHERE u <> '''' OR i = 1 ORDER BY u, i) u'
			ELSE format('(SELECT %L::text AS u, ''{}''::text[] AS above, false AS own) u', user_id) END);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_sum_day(one date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	parts CONSTANT regclass[] := array_remove(ARRAY(SELECT to_regclass(l || to_char(one, '_YYYYMMDD')) FROM rate_limit_ledgers() l), NULL);
	part regclass;
	source text;
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL lock_timeout = '100ms';
	FOR part IN SELECT p FROM unnest(parts) p WHERE NOT rate_limit_is_closed(p) LOOP
		EXECUTE format('ALTER TABLE %s ADD CONSTRAINT day_is_summed CHECK (current_setting(''pg_ratelimit.forgets'', true) IS NOT DISTINCT FROM ''on'') NOT VALID', part);
	END LOOP;
	IF FOUND THEN
		RETURN true;
	END IF;
	FOREACH part IN ARRAY parts LOOP
		EXECUTE format('LOCK TABLE %s IN SHARE MODE', part);
	END LOOP;
	IF NOT (SELECT bool_and(rate_limit_is_closed(p)) FROM unnest(parts) p) THEN
		RETURN true;
	END IF;
	DELETE FROM rate_limit_totals t WHERE t.day = one;
	source := rate_limit_ledger_source(datemultirange(daterange(one, one + 1)), '');
	EXECUTE 'INSERT INTO rate_limit_totals ' || rate_limit_sums(source, NULL, false);
	EXECUTE 'INSERT INTO rate_limit_totals ' || rate_limit_sums(source, NULL, true);
	INSERT INTO rate_limit_ledger_days (day, summed) VALUES (one, true) ON CONFLICT (day) DO UPDATE SET summed = true;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_is_closed(part regclass) RETURNS boolean LANGUAGE sql STABLE AS $$
	SELECT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = $1 AND k.conname = 'day_is_summed')
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_totals_upkeep() RETURNS boolean LANGUAGE plpgsql
	SECURITY DEFINER SET jit = off SET work_mem = '64MB' AS $$
DECLARE
	one date;
BEGIN
	IF pg_try_advisory_xact_lock(1885827696) THEN
		SELECT max(p.day) INTO one FROM rate_limit_ledger_parts() p LEFT JOIN rate_limit_ledger_days d ON d.day = p.day WHERE NOT p.summed AND p.day < ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date
				AND (d.open_until BETWEEN now() AND now() + interval '1 hour') IS NOT TRUE;
	END IF;
	RETURN one IS NOT NULL AND rate_limit_sum_day(one);
END $$;
--;
COMMENT ON TABLE rate_limit_ledger_days IS 'The days of the ledger that were closed. Whoever deletes rows of the ledger sets summed to false for their days.';
--;
COMMENT ON COLUMN rate_limit_ledger_days.day IS 'The day.';
--;
COMMENT ON COLUMN rate_limit_ledger_days.summed IS 'Whether rate_limit_totals has the sums of all rows of the day.';
--;
COMMENT ON COLUMN rate_limit_ledger_days.open_until IS 'When the day may be closed again, after a late settlement.';
--;
COMMENT ON TABLE rate_limit_totals IS 'The sums of the ledger. rate_limit_invoice adds what they lack.';
--;
COMMENT ON COLUMN rate_limit_totals.day IS 'The day of the rows.';
--;
COMMENT ON COLUMN rate_limit_totals.n IS 'The number of the sum in its day.';
--;
COMMENT ON COLUMN rate_limit_totals.user_id IS 'The user who has sent the requests, or who was above that user when they came. Empty: an unknown sender.';
--;
COMMENT ON COLUMN rate_limit_totals.ancestors IS 'Who was above the user then, the nearest first.';
--;
COMMENT ON COLUMN rate_limit_totals.own IS 'Whether the user has sent the requests.';
--;
COMMENT ON COLUMN rate_limit_totals.settled IS 'The day on which the requests were charged, in UTC.';
--;
COMMENT ON COLUMN rate_limit_totals.kind IS 'The kind of the rows.';
--;
COMMENT ON COLUMN rate_limit_totals.model IS 'The model. NULL: none, or a sum by limit.';
--;
COMMENT ON COLUMN rate_limit_totals.prefix IS 'The limit, rule/RULE/LIMIT, by the names by which it counts. NULL: a sum by model.';
--;
COMMENT ON COLUMN rate_limit_totals.unit IS 'The unit of a sum by limit.';
--;
COMMENT ON COLUMN rate_limit_totals.corrects IS 'The quarter of an hour in which the requests were charged that corrections correct. NULL: charges.';
--;
COMMENT ON COLUMN rate_limit_totals.requests IS 'The number of requests, each for the model that it named. Corrections have none.';
--;
COMMENT ON COLUMN rate_limit_totals.units IS 'What they have cost on the limit.';
--;
COMMENT ON COLUMN rate_limit_totals.input IS 'The sum of this column of the ledger.';
--;
COMMENT ON COLUMN rate_limit_totals.cache_read IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.cache_write IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.output IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.money IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.remainder IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.cache_write_1h IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.audio_input IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.audio_cache_read IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.audio_output IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.image_input IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.image_output IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.search IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.estimated_input IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.estimated_output IS 'The sum of this column.';
--;
COMMENT ON COLUMN rate_limit_totals.estimated_money IS 'The sum of this column.';
--;
COMMENT ON FUNCTION rate_limit_ledger_parts IS 'The days of the ledger, and whether they are summed.';
--;
COMMENT ON FUNCTION rate_limit_ledger_window IS 'The days of the ledger with the rows of a time. ledgerSQL writes a row at most 7 days before or after its time.';
--;
COMMENT ON FUNCTION rate_limit_ledger_source IS 'A query for the requests in days of the ledger, each once, also on Citus. Each further model of a response is a row without charges, and with its number in lines.';
--;
COMMENT ON FUNCTION rate_limit_sums IS 'A query for the rows of rate_limit_totals of a source, of all users, or of a user with all its rows, by model or by limit.';
--;
COMMENT ON FUNCTION rate_limit_sum_day IS 'Closes a day of the ledger, or sums a day that is closed, unless another session uses it.';
--;
COMMENT ON FUNCTION rate_limit_is_closed IS 'Whether a partition of the ledger is closed for new rows.';
--;
COMMENT ON FUNCTION rate_limit_totals_upkeep IS 'Closes or sums the latest day of the ledger that ended an hour ago or earlier, and returns whether it did. A proxy runs it each hour until it returns false.';
--;
CREATE OR REPLACE FUNCTION rate_limit_money(units numeric, rest numeric DEFAULT NULL) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN round((units + coalesce(rest, 0) * 0.001) * 0.000001, 9);
--;
CREATE OR REPLACE FUNCTION rate_limit_counted_user(user_id text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN coalesce((SELECT u.counted_as FROM rate_limit_users u WHERE u.user_id = $1), $1);
	END IF;
	RETURN $1;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_renamed() RETURNS TABLE (counted text, user_id text)
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY SELECT u.counted_as, u.user_id FROM rate_limit_users u WHERE u.counted_as IS NOT NULL;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_lines(source text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN format('SELECT l.time, l.day, l.id, l.user_id AS "user", l.key_id, l.ancestors, l.model,
		l.input, l.cache_read, l.cache_write, l.output,
		rate_limit_money(l.money, l.remainder)::numeric(38, 9) AS money,
		(SELECT jsonb_agg(CASE c ->> ''unit'' WHEN ''money'' THEN c || jsonb_build_object(''units'',
			rate_limit_money((c ->> ''units'')::numeric)) ELSE c END
			ORDER BY c ->> ''prefix'', c ->> ''key'')
			FROM jsonb_path_query(l.charges, ''$[*][*]'') c) AS charges,
		CASE WHEN l.charges IS NULL THEN l.lines::bigint ELSE 0 END AS line, l.answered,
		coalesce(l.tier, ''standard'') AS tier,
		CASE WHEN l.money IS NOT NULL THEN coalesce(l.price, l.model) END AS price, l.price_valid,
		l.cache_write_1h, l.audio_input, l.audio_cache_read, l.audio_output, l.image_input, l.image_output,
		l.search, l.estimated_input, l.estimated_output,
		rate_limit_money(l.estimated_money)::numeric(38, 9) AS estimated_money, l.kind, l.corrects,
		l.corrects_time, l.corrected_by, l.reason FROM (%s) l', source);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_rows("from" timestamptz DEFAULT '-infinity', until timestamptz DEFAULT 'infinity', user_id text DEFAULT NULL, below boolean DEFAULT false)
RETURNS TABLE ("time" timestamptz, day date, id uuid, "user" text, key_id bigint, ancestors text[], model text, input bigint, cache_read bigint, cache_write bigint, output bigint, money numeric,
	charges jsonb, line bigint, answered text, tier text, price text, price_valid tstzrange, cache_write_1h bigint, audio_input bigint, audio_cache_read bigint, audio_output bigint,
	image_input bigint, image_output bigint, search bigint, estimated_input bigint, estimated_output bigint, estimated_money numeric, kind text, corrects uuid,
	corrects_time timestamptz, corrected_by text, reason text) LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY EXECUTE rate_limit_ledger_lines(rate_limit_ledger_source( rate_limit_ledger_window("from", until), CASE WHEN user_id IS NOT NULL THEN
				format(CASE WHEN below THEN 'AND (user_id = %1$L '
				'OR ancestors <> ''{}'' AND ancestors @> ARRAY[%1$L])' ELSE 'AND user_id = %1$L' END,
				rate_limit_counted_user(user_id)) END))
		|| ' WHERE l.time >= $1 AND l.time < $2 ORDER BY 1, 3, 14' USING "from", until;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_totals_of(user_id text, "from" timestamptz, until timestamptz, prefix text DEFAULT NULL, unit text DEFAULT NULL, each boolean DEFAULT false) RETURNS SETOF rate_limit_totals
	LANGUAGE plpgsql STABLE SET jit = off AS $$
DECLARE
	counted CONSTANT text := rate_limit_counted_user($1);
	first CONSTANT date := (($2 AT TIME ZONE 'UTC') + interval '1 day' - interval '1 us')::date;
	last CONSTANT date := ($3 AT TIME ZONE 'UTC')::date;
	edges CONSTANT date[] := array_remove(ARRAY[CASE WHEN first > ($2 AT TIME ZONE 'UTC')::date THEN first - 1 END, CASE WHEN last < $3 AT TIME ZONE 'UTC' THEN last END], NULL);
	summed CONSTANT date[] := ARRAY(SELECT p.day FROM rate_limit_ledger_parts() p WHERE p.summed AND rate_limit_ledger_window($2, $3) @> p.day);
	open CONSTANT datemultirange := rate_limit_ledger_window($2, $3) - (SELECT coalesce(range_agg(daterange(d, d + 1)), '{}') FROM unnest(summed) d);
	within CONSTANT text := ' AND time >= $1 AND time < $2 AND (time < $3 OR time >= $4 OR $5 @> day)';
	source text;
BEGIN
	IF NOT each THEN
		RETURN QUERY SELECT t.* FROM rate_limit_totals t WHERE t.user_id = counted AND t.settled >= first AND t.settled < last AND t.day = ANY (summed) AND (t.prefix, t.unit) IS NOT DISTINCT FROM ($4, $5);
	ELSIF counted IS NOT NULL THEN
		RETURN QUERY SELECT t.* FROM rate_limit_totals t WHERE t.settled >= first AND t.settled < last AND t.own AND (t.user_id = counted OR t.ancestors @> ARRAY[counted]) AND t.n > 0
			AND t.day = ANY (summed);
	END IF;
	source := rate_limit_ledger_source(open + (SELECT coalesce(range_agg(daterange(t.day, t.day + 1)), '{}') FROM rate_limit_totals t
			WHERE (counted IS NULL OR t.user_id = counted) AND t.settled = ANY (edges) AND t.day = ANY (summed)),
		concat(CASE WHEN counted IS NOT NULL THEN
			format('AND (user_id = %1$L OR ancestors <> ''{}'' AND ancestors @> ARRAY[%1$L])', counted) END,
			CASE WHEN to_regprocedure('rate_limit_shards()') IS NULL THEN within END));
	source := format('SELECT * FROM (%s) s WHERE true %s', source, within);
	source := CASE WHEN $4 IS NULL THEN format('SELECT * FROM (%s) t(%s) WHERE t.own OR NOT $6', rate_limit_sums(source, CASE WHEN NOT each THEN counted END, false),
			(SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = 'rate_limit_totals'::regclass AND a.attnum > 0))
		ELSE format('SELECT t.* FROM (SELECT count(*) FILTER (WHERE c.kind = ''charge'') AS requests,
				sum(c.units) AS units
			FROM (SELECT l.kind, jsonb_path_query_first(l.charges, %L)::numeric AS units
				FROM (%s) l OFFSET 0) c WHERE c.units IS NOT NULL HAVING count(*) > 0) u,
			jsonb_populate_record(NULL::rate_limit_totals, to_jsonb(u)) t', format('$[*][*] ? (@.unit == %s '
			'&& (@.prefix == %s || @.prefix starts with %s && @.prefix starts with "rule/")).units',
			to_json($5), to_json($4), to_json($4 || ':')), source) END;
	RETURN QUERY EXECUTE source USING $2, $3, first::timestamp AT TIME ZONE 'UTC', last::timestamp AT TIME ZONE 'UTC', open, each AND counted IS NOT NULL;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_require_user(user_id text) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
	known boolean;
BEGIN
	IF rate_limit_may_read('users') THEN
		known := EXISTS (SELECT FROM rate_limit_users u WHERE u.user_id = $1);
	END IF;
	IF known IS NOT TRUE AND rate_limit_may_read('metrics') THEN
		known := EXISTS (SELECT FROM rate_limit_metrics m WHERE m.user_id = $1);
	END IF;
	IF known IS NOT TRUE AND NOT EXISTS (SELECT FROM rate_limit_totals_of($1, '-infinity', 'infinity')) THEN
		RAISE EXCEPTION 'user: %: must be in the policy, the metrics or the ledger', to_json($1) USING ERRCODE = 'no_data_found';
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_calendars() RETURNS TABLE (tier text, place bigint, rule text, limit_name text, unit text, zone text)
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('tiers', 'rules', 'rule_limits') THEN
		RETURN QUERY SELECT t.tier, row_number() OVER (PARTITION BY t.tier ORDER BY array_position('{year,month,week,day}', l.calendar), r.priority DESC, r.name, l.name),
			r.name, l.name, l.calendar, coalesce(rate_limit_known_zone(l.time_zone), 'UTC')
		FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule JOIN (SELECT k.tier FROM rate_limit_tiers k UNION VALUES ('anonymous')) t ON r.tiers IS NULL OR t.tier = ANY (r.tiers)
		WHERE l.unit = 'money' AND l.calendar IS NOT NULL AND r.mode <> 'off' AND r.valid @> now() AND EXISTS (SELECT FROM unnest(r.count_by) d WHERE d ~ '^(key[|])?user([|]|$)|^key$')
			AND NOT EXISTS (SELECT FROM rate_limit_rules o WHERE o.family = r.family AND o.mode = 'enforce' AND o.valid @> now() AND (o.tiers IS NULL OR t.tier = ANY (o.tiers))
				AND (-o.priority, o.name) < (-r.priority, r.name)
				AND rate_limit_conditions(r) || rate_limit_conditions(o) = rate_limit_conditions(r));
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_billing(users text[])
RETURNS TABLE (counted text, unit text, zone text, day int) LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY SELECT n.name, CASE WHEN o.own THEN 'month' ELSE coalesce(c.unit, 'month') END, coalesce(CASE WHEN o.own THEN rate_limit_known_zone(u.time_zone) END, c.zone, 'UTC'),
			coalesce(extract(day FROM u.period_start)::int, 1)
		FROM (SELECT unnest(coalesce($1, '{""}')) UNION ALL SELECT coalesce(a.counted_as, a.user_id) FROM rate_limit_users a WHERE $1 IS NULL) n(name)
			LEFT JOIN rate_limit_users u ON coalesce(u.counted_as, u.user_id) = n.name
			CROSS JOIN LATERAL (SELECT u.period_start IS NOT NULL OR u.time_zone <> 'UTC' AS own) o
			LEFT JOIN rate_limit_calendars() c ON c.tier = coalesce(u.tier, 'anonymous') AND c.place = 1;
	ELSE
		RETURN QUERY SELECT n.name, 'month', 'UTC', 1 FROM unnest(coalesce($1, '{""}')) n(name);
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_midnight(day timestamp, zone text) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE RETURN (SELECT (SELECT CASE WHEN early AT TIME ZONE p.zone = midnight THEN early ELSE late END
		FROM (SELECT midnight, late, (midnight - ((late - interval '24 hours') AT TIME ZONE p.zone - (late - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS early FROM (SELECT midnight, midnight AT TIME ZONE p.zone AS late
			FROM (SELECT $1 AS midnight OFFSET 0) m OFFSET 0) m OFFSET 0) m) FROM (SELECT $2 AS zone) p);
--;
CREATE OR REPLACE FUNCTION rate_limit_calendar_periods(unit text, zone text, day int, "from" timestamptz,
	until timestamptz) RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE sql STABLE ROWS 2 AS $$
	SELECT p.* FROM (SELECT ('1 ' || $1)::interval AS step, interval '1 day' AS one, $3 - 1 AS days) i, generate_series(date_trunc($1, $4 AT TIME ZONE $2) - step, $5 AT TIME ZONE $2 + one, step) m,
		LATERAL (SELECT rate_limit_midnight(least(m + days * one, m + step - one), $2) AS starts, rate_limit_midnight(least(m + step + days * one, m + step + step - one), $2) AS ends) p
	WHERE p.starts <= $5 AND p.ends > $4 ORDER BY 1
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_whole_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE sql STABLE ROWS 2 AS $$
	SELECT p.* FROM rate_limit_billing(ARRAY[rate_limit_counted_user($1)]) b, rate_limit_calendar_periods(b.unit, b.zone, b.day, $2, $3) p ORDER BY 1
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE plpgsql STABLE ROWS 2 AS $$
BEGIN
	IF NOT rate_limit_may_read('users') THEN
		IF num_nonnulls($2, $3) < 2 THEN
			RAISE EXCEPTION 'from, until: must be given: the policy with the periods of users is not in this database' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		RETURN QUERY SELECT $2, $3;
		RETURN;
	END IF;
	$2 := CASE WHEN $2 IS NOT NULL THEN least(greatest($2, '2000-01-01Z'), now()) END;
	$3 := CASE WHEN $3 IS NOT NULL THEN least($3, now() + interval '1 month') END;
	RETURN QUERY SELECT greatest(p.starts, $2), least(p.ends, $3) FROM rate_limit_whole_periods($1, coalesce($2, now()), coalesce($3, now())) p
		WHERE p.starts <= now() AND p.starts < coalesce($3, 'infinity') ORDER BY 1;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_invoice(user_id text, "from" timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, by_user boolean DEFAULT false)
RETURNS TABLE (period timestamptz, model text, requests bigint, input bigint, cache_read bigint, cache_write bigint, output bigint, money numeric, cache_write_1h bigint, audio_input bigint,
	audio_cache_read bigint, audio_output bigint, image_input bigint, image_output bigint, search bigint, estimated_input bigint, estimated_output bigint, estimated_money numeric, currency text, "user" text,
	parent text, corrects timestamptz) LANGUAGE sql STABLE AS $$
	WITH t AS MATERIALIZED ( SELECT p.starts, CASE WHEN $4 THEN t.user_id END AS sender, CASE WHEN $4 AND t.user_id <> u THEN t.ancestors[1] END AS above, t.*
		FROM rate_limit_counted_user($1) u, rate_limit_periods($1, $2, $3) p, rate_limit_totals_of($1, p.starts, p.ends, each => $4) t
		WHERE $1 IS NOT NULL
	), r AS MATERIALIZED ( SELECT r.* FROM rate_limit_renamed() r WHERE $4
	), c AS MATERIALIZED ( SELECT c.* FROM (SELECT min(t.corrects) AS first, max(t.corrects) AS last FROM t) r, rate_limit_whole_periods($1, r.first, r.last) c
	)
	SELECT t.starts, t.model, sum(t.requests)::bigint, coalesce(sum(t.input), 0)::bigint, coalesce(sum(t.cache_read), 0)::bigint, coalesce(sum(t.cache_write), 0)::bigint,
		coalesce(sum(t.output), 0)::bigint,
		rate_limit_money(sum(t.money), sum(t.remainder)),
		sum(t.cache_write_1h)::bigint, sum(t.audio_input)::bigint, sum(t.audio_cache_read)::bigint,
		sum(t.audio_output)::bigint, sum(t.image_input)::bigint, sum(t.image_output)::bigint,
		sum(t.search)::bigint, sum(t.estimated_input)::bigint, sum(t.estimated_output)::bigint,
		rate_limit_money(sum(t.estimated_money)),
		(SELECT max(r.currency) FROM rate_limit_ledger_retention r),
		coalesce(s.user_id, nullif(t.sender, '')), coalesce(a.user_id, nullif(t.above, '')), c.starts
	FROM t LEFT JOIN c ON t.corrects >= c.starts AND t.corrects < c.ends LEFT JOIN r s ON s.counted = t.sender LEFT JOIN r a ON a.counted = t.above
	GROUP BY t.starts, t.model, t.sender, t.above, s.user_id, a.user_id, c.starts
	ORDER BY 1, c.starts NULLS FIRST, t.sender, t.above, 2
$$;
--;
COMMENT ON FUNCTION rate_limit_money IS 'An amount of money in millionths, and rest in thousandths of one, as a number with nine decimals.';
--;
COMMENT ON FUNCTION rate_limit_counted_user IS 'The name by which a user counts and is in the ledger: the first one of a renamed user.';
--;
COMMENT ON FUNCTION rate_limit_renamed IS 'The users with another name than that by which they count, if the role may read them.';
--;
COMMENT ON FUNCTION rate_limit_ledger_lines IS 'A query for the rows of rate_limit_ledger_source with the columns of rate_limit_ledger_rows.';
--;
COMMENT ON FUNCTION rate_limit_ledger_rows IS 'What requests have cost, if they were settled in a time: a row for each request, also on Citus, and one for each further model of its response (line 1 and so on), without charges. Corrections that were made in that time have rows of their own, by kind. user_id selects the requests of a user, and with below also of all who were below it then.';
--;
COMMENT ON FUNCTION rate_limit_totals_of IS 'What a user and all who were below it then have used from a time until another, as several rows of rate_limit_totals: by model, or on a limit in a unit. each: a row for each of them that has sent requests, by model. user_id NULL: what all users have used in days without totals, and in parts of days.';
--;
COMMENT ON FUNCTION rate_limit_require_user IS 'Fails if neither the policy nor the history nor the ledger knows a user.';
--;
COMMENT ON FUNCTION rate_limit_calendars IS 'The calendar limits in money that count users or keys of each tier. place 1 is the longest.';
--;
COMMENT ON FUNCTION rate_limit_billing IS 'The billing periods of users, by the names by which they count: a unit of the calendar in a time zone. Months start on a day, or on their last one. They follow period_start and time_zone of the user, or else the longest calendar limit in money of the user''s tier, or else are months in UTC. users NULL: all users of the policy, and the empty name for who is not in it.';
--;
COMMENT ON FUNCTION rate_limit_midnight IS 'When a day starts in a time zone, as proxies compute it.';
--;
COMMENT ON FUNCTION rate_limit_calendar_periods IS 'The periods of a result of rate_limit_billing in a time, as a whole.';
--;
COMMENT ON FUNCTION rate_limit_whole_periods IS 'The billing periods of a user in a time, as a whole.';
--;
COMMENT ON FUNCTION rate_limit_periods IS 'The billing periods of a user in a time, cut to it. Without a time, the period that is running.';
--;
COMMENT ON FUNCTION rate_limit_invoice IS 'What a user and all who were below it then have used from a time until another, by billing period and model; by_user: and by who has sent the requests, with its parent then. Without times: in the period that is running. money NULL: the model had no price. input and the columns of other parts have no tokens in common. The estimates are parts of input, output and money. corrects is the start of a period that was billed again. NULL: requests of the period itself.';
--;
CREATE OR REPLACE FUNCTION rate_limit_began(id uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN substr($1::text, 15, 1) = '7'
	THEN to_timestamp(('x' || left(replace($1::text, '-', ''), 12))::bit(48)::bigint / 1000.0) END;
--;
CREATE OR REPLACE FUNCTION rate_limit_forget_in_ledger(command text, counted text[], keys bigint[],
	texts text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	rows bigint;
	days date[];
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL pg_ratelimit.forgets = 'on';
	PERFORM pg_advisory_xact_lock(1885827697); -- see rate_limit_correct
	EXECUTE format('WITH changed AS (%s RETURNING day) SELECT count(*), array_agg(DISTINCT day) FROM changed', command) INTO rows, days USING counted, keys, texts;
	SET LOCAL pg_ratelimit.forgets = '';
	UPDATE rate_limit_ledger_days d SET summed = false WHERE d.day = ANY (days);
	DELETE FROM rate_limit_totals t WHERE t.user_id = ANY (counted) OR t.ancestors && counted;
	RETURN rows;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_forget_person(user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, key text DEFAULT NULL, address inet DEFAULT NULL,
	account boolean DEFAULT false, dry_run boolean DEFAULT false, until timestamptz DEFAULT NULL)
RETURNS TABLE (name text, deleted bigint, kept bigint) LANGUAGE plpgsql AS $$
DECLARE
	network CONSTANT cidr := network(set_masklen($4, CASE family($4) WHEN 6 THEN 64 ELSE 32 END));
	client CONSTANT text := CASE family($4) WHEN 6 THEN network::text ELSE host($4) END;
	users CONSTANT text[] := array_remove(ARRAY[$1], NULL);
	counted CONSTANT text[] := array_remove(ARRAY[CASE WHEN until IS NULL THEN rate_limit_counted_user($1) ELSE $1 END], NULL);
	keys bigint[] := array_remove(ARRAY[$2], NULL);
	texts text[] := array_remove(ARRAY[$1, rate_limit_counter_key($1), rate_limit_counter_key(counted[1]), $3, host($4), client], NULL);
	ids text[]; -- of API keys, as keys of counters contain them
	digests text[];
	refs text[]; -- values of rate_limit_changes.ref
	counted_or_deleted CONSTANT text := CASE WHEN dry_run THEN 'SELECT count(*) FROM %s WHERE %s' ELSE 'WITH d AS (DELETE FROM %s WHERE %s RETURNING 1) SELECT count(*) FROM d' END;
	parts CONSTANT oid[] := ARRAY(SELECT c.oid FROM pg_class c JOIN pg_class a ON a.oid = to_regclass('rate_limit_audit') AND a.relnamespace = c.relnamespace AND a.relowner = c.relowner
		WHERE c.relkind = 'r' AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$');
	condition text;
	counts record;
	rules text := '(SELECT NULL::text AS counts, NULL::text[] AS count_by WHERE false)';
	prefixes text[];
	counters text[];
	holding bigint;
	running bigint := 0;
BEGIN
	IF num_nonnulls($1, $2, $3, $4) <> 1 THEN
		RAISE invalid_parameter_value USING MESSAGE = format('user_id, key_id, key, address: exactly one of them must be given, not %s', num_nonnulls($1, $2, $3, $4));
	END IF;
	IF until IS NULL AND to_regclass('rate_limit_users') IS NOT NULL THEN
		PERFORM rate_limit_refuse_parent($1);
	END IF;
	texts := ARRAY(SELECT s FROM unnest(texts) AS t, unnest(rate_limit_stored_keys(t)) AS s) || array_remove(ARRAY['ip:' || client, '%preflight:' || client], NULL);
	IF to_regclass('rate_limit_api_keys') IS NOT NULL THEN
		rules := '(SELECT coalesce(to_jsonb(r) ->> ''counted_as'', name) AS counts, count_by FROM rate_limit_rules r)';
		SELECT keys || array_agg(k.id), array_agg(k.counted_as::text), array_agg(encode(k.digest, 'hex')) INTO keys, ids, digests FROM rate_limit_api_keys k
			WHERE k.user_id = $1 OR k.id = $2 OR k.digest = sha256(convert_to($3, 'UTF8'));
		refs := texts || array_remove(ARRAY['user/' || $1, 'network/' || network], NULL) || digests || ARRAY(SELECT 'key/' || d FROM unnest(digests) AS d);
	END IF;
	texts := texts || ARRAY(SELECT 'sha256:' || d FROM unnest(digests) AS d);
	IF until IS NULL AND NOT dry_run THEN
		INSERT INTO rate_limit_forgotten SELECT DISTINCT sha256(convert_to(n, 'UTF8')) FROM (SELECT 'user:' || unnest(counted) UNION ALL SELECT 'key_id:' || unnest(keys)
				UNION ALL SELECT 'text:' || unnest(texts) WHERE $1 IS NULL) AS f(n)
			ON CONFLICT ON CONSTRAINT rate_limit_forgotten_pkey DO UPDATE SET at = now();
	END IF;
	texts := rate_limit_key_forms(texts);
	ids := rate_limit_key_forms(array_remove(keys::text[] || ids, NULL));
	kept := 0;
	IF NOT dry_run AND EXISTS (SELECT FROM pg_publication p WHERE p.pubdelete) THEN
		FOR name IN SELECT c.oid::regclass FROM pg_class c WHERE c.oid = ANY (parts) AND c.relreplident = 'd'
		LOOP
			EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
		END LOOP;
	END IF;
	FOR name, condition IN SELECT a.name, '($5 IS NULL OR time <= $5) AND (user_id = ANY ($1) OR key_id = ANY ($2)
			OR address <<= $3 OR (user_id IS NULL OR cardinality($1) = 0) AND (key = ANY ($4)
				OR string_to_array(key, '' '') && $4 OR also && $4))'
		FROM (SELECT 'rate_limit_audit' AS name, 'rate_limit_audit'::text AS place UNION ALL SELECT format('%I.%I', c.relnamespace::regnamespace, c.relname), c.relname FROM pg_class c
				LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
			WHERE c.oid = ANY (parts) AND (i.inhrelid IS NULL OR i.inhdetachpending) ORDER BY place) AS a
		UNION ALL -- a table comes before the tables that it refers to
		SELECT t.name, t.condition FROM (VALUES ('rate_limit_metrics', '($5 IS NULL OR time <= $5) AND (user_id = ANY ($1) OR key_id = ANY ($2))', true),
				('rate_limit_overrides', 'user_id = ANY ($1) OR key_id = ANY ($2)', until IS NULL),
			('rate_limit_bans', 'user_id = ANY ($1) OR key_id = ANY ($2) OR network <<= $3', until IS NULL),
			('rate_limit_api_keys', 'id = ANY ($2)', account), ('rate_limit_users', 'user_id = ANY ($1)', account)) AS t(name, condition, wanted) WHERE t.wanted
	LOOP
		CONTINUE WHEN to_regclass(name) IS NULL;
		EXECUTE format(counted_or_deleted, name, condition) INTO deleted USING users, keys, network, texts, until;
		RETURN NEXT;
	END LOOP;
	IF to_regclass('rate_limit_changes') IS NOT NULL THEN
		SELECT 'rate_limit_changes', 0, count(*) INTO name, deleted, kept FROM rate_limit_changes c WHERE c.ref = ANY (refs);
		RETURN NEXT;
	END IF;
	FOR name IN SELECT t::regclass FROM rate_limit_ledgers() t LOOP
		condition := format('WHERE (user_id = ANY ($1) OR key_id = ANY ($2)
			OR ancestors <> ''{}'' AND ancestors && $1
			OR (user_id IS NULL OR cardinality($1) = 0) AND EXISTS (
				SELECT FROM jsonb_path_query(charges, ''$[*]'') c
				WHERE string_to_array(c ->> ''key'', '' '') && $3))
			AND (%1$L IS NULL OR rate_limit_began(id) <= %1$L)', until);
		IF dry_run THEN
			EXECUTE format('SELECT count(*) FROM %s %s', name, condition) INTO deleted USING counted, keys, texts;
		ELSE
			deleted := rate_limit_forget_in_ledger(format('UPDATE %1$s SET
				user_id = CASE WHEN %3$s THEN NULL ELSE user_id END,
				key_id = CASE WHEN %3$s THEN NULL ELSE key_id END,
				ancestors = CASE WHEN $1 = ''{}'' THEN ancestors
					ELSE array_replace(ancestors, $1[1], '''') END,
				charges = (SELECT coalesce(jsonb_agg(CASE WHEN %3$s AND c ->> ''key'' <> ALL (
					rate_limit_key_forms(ARRAY(SELECT rate_limit_counter_key(a) FROM unnest(ancestors) AS a)))
					OR string_to_array(c ->> ''key'', '' '') && $3
					THEN c || ''{"key": null}'' ELSE c END), ''[]'')
					FROM jsonb_path_query(charges, ''$[*]'') c) %2$s',
				name, condition, '(user_id = ANY ($1) OR key_id = ANY ($2))'), counted, keys, texts);
		END IF;
		kept := deleted;
		deleted := 0;
		RETURN NEXT;
	END LOOP;
	condition := 'EXISTS (SELECT FROM unnest(string_to_array(c.key, '' '')) WITH ORDINALITY AS p(part, place) WHERE part = ANY (CASE WHEN ''key'' IN (r.count_by[place], split_part(r.count_by[place], '
			'''|'', substring(part FROM ''^([1-9])[|]'')::int)) THEN $1 ELSE $2 END))
		OR r.counts IS NULL AND c.key = ANY ($2)';
	FOR counts IN SELECT * FROM rate_limit_counter_tables() LOOP
		name := counts.counters;
		EXECUTE format(replace($sql$SELECT array_agg(h.prefix), array_agg(h.key), max(h.holders)
			FROM (SELECT c.prefix, c.key, (SELECT count(*) FROM (SELECT held[i][1] AS s, held[i][2] AS v FROM generate_subscripts(held, 1) i) p WHERE v > 0 AND (s = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR s - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -s <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]))) AS holders FROM %1$s c LEFT JOIN %2$s r
				ON c.prefix LIKE 'rule/%%' AND split_part(c.prefix, '/', 2) = r.counts WHERE %3$s) h$sql$,
			'{processes}', '%4$s'), name, rules, condition, counts.processes)
			INTO prefixes, counters, holding USING ids, texts;
		running := greatest(running, holding);
		deleted := coalesce(cardinality(counters), 0);
		kept := 0;
		IF deleted > 0 AND NOT dry_run THEN
			kept := deleted;
			deleted := rate_limit_delete_counters(counts.counters, counts.processes, prefixes, counters);
			kept := kept - deleted;
		END IF;
		RETURN NEXT;
	END LOOP;
	condition := format('FROM rate_limit_notices c LEFT JOIN %s r ON c.rule = r.counts WHERE %s', rules, condition);
	EXECUTE format(counted_or_deleted, 'rate_limit_notices', format('ctid = ANY (ARRAY(SELECT c.ctid %s))', condition)) INTO deleted USING ids, texts;
	SELECT 'rate_limit_notices', 0 INTO name, kept;
	RETURN NEXT;
	IF running > 0 THEN
		SELECT 'running requests, at least', 0, running INTO name, deleted, kept;
		RETURN NEXT;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_forget_again() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	first timestamptz;
	source text;
	found record;
BEGIN
	DELETE FROM rate_limit_forgotten f WHERE f.at < now() - interval '1 day';
	SELECT min(f.at) INTO first FROM rate_limit_forgotten f;
	SELECT string_agg(format('SELECT * FROM %s WHERE day >= %L AND time >= %L', l, (first AT TIME ZONE 'UTC')::date - 8, first), ' UNION ALL ') INTO source FROM rate_limit_ledgers() l;
	IF first IS NULL THEN
		RETURN;
	END IF;
	FOR found IN EXECUTE format('SELECT DISTINCT n.kind, n.name, f.until FROM (%s) l, LATERAL (
			SELECT ''user'', l.user_id UNION ALL SELECT ''user'', unnest(l.ancestors)
			UNION ALL SELECT ''key_id'', l.key_id::text UNION ALL SELECT ''text'', regexp_replace(
				unnest(string_to_array(c ->> ''key'', '' '')), ''^[1-9][|]'', '''')
			FROM jsonb_path_query(l.charges, ''$[*]'') c) n(kind, name)
		JOIN (SELECT f.digest, f.at, f.at + interval ''1 min'' AS until FROM rate_limit_forgotten f) f
			ON f.digest = sha256(convert_to(n.kind || '':'' || n.name, ''UTF8''))
		WHERE l.time >= f.at AND rate_limit_began(l.id) <= f.until', source)
	LOOP
		PERFORM rate_limit_forget_person(CASE found.kind WHEN 'user' THEN found.name END, CASE found.kind WHEN 'key_id' THEN found.name::bigint END,
			CASE found.kind WHEN 'text' THEN found.name END, until => found.until);
	END LOOP;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;
--;
COMMENT ON TABLE rate_limit_forgotten IS 'The names that were forgotten within a day, as digests. Upkeep forgets them again where a request has brought them back that ran then.';
--;
COMMENT ON COLUMN rate_limit_forgotten.digest IS 'The SHA-256 of user:, key_id: or text: and the name.';
--;
COMMENT ON COLUMN rate_limit_forgotten.at IS 'When it was last forgotten.';
--;
COMMENT ON FUNCTION rate_limit_began IS 'When a request in the ledger began, by the clock of its proxy. NULL: another number.';
--;
COMMENT ON FUNCTION rate_limit_forget_in_ledger IS 'Runs the command with which rate_limit_forget_person changes the ledger, and returns how many rows changed.';
--;
COMMENT ON FUNCTION rate_limit_forget_person IS 'Deletes all rows about a person, who must not be the parent of users, from the counters, the history, the overrides and the bans. One argument names the person: user_id (with its API keys), key_id (an API key), key (an API key, or the key of a counter) or address. account also deletes the user and the API keys. Returns for each table the number of rows that were deleted, or that a dry run would delete, and of kept rows: changes, which proxies need, counters of running requests, and rows of the ledger, which lose user, API key and key. If requests of the person hold units, a last row has a number that is not above theirs. until: forgets only what requests until then have made, and no overrides and bans.';
--;
COMMENT ON FUNCTION rate_limit_forget_again IS 'Forgets again the names that requests have brought back that ran when they were forgotten, within a day. rate_limit_ledger_upkeep calls it.';
--;
CREATE OR REPLACE FUNCTION rate_limit_heartbeat(node text, epoch bigint, report json) RETURNS void
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	caller CONSTANT text := rate_limit_caller();
BEGIN
	IF $3 IS NULL THEN
		UPDATE rate_limit_nodes n SET ended = now() WHERE (n.node, n.epoch, n.role) = ($1, $2, caller);
		RETURN;
	END IF;
	DELETE FROM rate_limit_nodes n WHERE n.seen < now() - interval '1 day' OR (n.node, n.role) = ($1, caller)
		AND n.epoch <> $2 AND NOT (n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s'
	AND n.system = (SELECT system_identifier FROM pg_control_system())) AND n.report->>'lost' IS NULL;
	INSERT INTO rate_limit_nodes AS n (node, epoch, report, role) VALUES ($1, $2, $3, caller)
	ON CONFLICT ON CONSTRAINT rate_limit_nodes_pkey DO UPDATE SET seen = now(), ended = NULL, system = excluded.system, report = excluded.report;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_live_proxies() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER
AS $$
	SELECT count(*) FROM rate_limit_nodes n WHERE (n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s'
	AND n.system = (SELECT system_identifier FROM pg_control_system()))
$$;
--;
COMMENT ON TABLE rate_limit_nodes IS 'The proxies that count here. A proxy renews its row every 3 seconds. The row of a proxy that has ended or is silent is deleted after a day. A crash of the server empties the table, and running proxies then write their rows again.';
--;
COMMENT ON COLUMN rate_limit_nodes.node IS 'The name of the proxy, the same after each start. Several proxies may have the same name.';
--;
COMMENT ON COLUMN rate_limit_nodes.epoch IS 'A number of the process, which is new after each start.';
--;
COMMENT ON COLUMN rate_limit_nodes.seen IS 'When the proxy renewed this row. The proxy is silent 10 seconds later.';
--;
COMMENT ON COLUMN rate_limit_nodes.ended IS 'When the proxy stopped in order. NULL: the proxy runs, or was killed.';
--;
COMMENT ON COLUMN rate_limit_nodes.system IS 'The system identifier of the server that the proxy wrote to. A row with another identifier is from a restored copy and has no meaning here.';
--;
COMMENT ON COLUMN rate_limit_nodes.report IS 'The proxy''s report about itself, which rate_limit_proxies has as columns. Times in the report are microseconds by the proxy''s clock, and clock is the time of that clock at seen.';
--;
COMMENT ON COLUMN rate_limit_nodes.role IS 'The role that wrote the row. Other proxies cannot change the row.';
--;
COMMENT ON FUNCTION rate_limit_heartbeat IS 'Renews the row of a proxy in rate_limit_nodes, or ends it if report is NULL. Deletes the rows of the calling role for earlier processes with that name, unless they have lost settlements, and the rows that were silent for a day.';
--;
COMMENT ON FUNCTION rate_limit_live_proxies IS 'The number of running proxies.';
--;
CREATE OR REPLACE FUNCTION rate_limit_lost_units()
	RETURNS TABLE (at timestamptz, units numeric, summary text) LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF NOT has_table_privilege('rate_limit_lost', 'SELECT') THEN
		RETURN;
	END IF;
	RETURN QUERY SELECT u.reported_at, sum(u.units), format('A proxy was killed, or cut off from the database, until %s UTC. What its running requests cost may not be charged: they held at most %s.',
			to_char(max(u.found_at) AT TIME ZONE 'UTC', 'HH24:MI:SS'),
			string_agg(u.units || ' units of ' || u.prefix, ', ' ORDER BY u.prefix))
		FROM (SELECT l.reported_at, e.key AS prefix, sum(e.value::numeric) AS units, max(l.found_at) AS found_at FROM rate_limit_lost l, jsonb_each_text(l.units) e
			WHERE l.reported_at > now() - interval '1 day' GROUP BY 1, 2) u
		GROUP BY u.reported_at;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_lost_upkeep() RETURNS TABLE (units numeric, summary text)
	LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' SET jit = off AS $$
DECLARE
	place record;
	late bigint[];
BEGIN
	FOR place IN SELECT t.processes, array_agg(t.counters) AS counters FROM rate_limit_counter_tables() t GROUP BY 1
	LOOP
		EXECUTE format('SELECT array_agg(p.process) FROM %s p WHERE p.seen > ''-infinity'' AND p.seen < clock_timestamp() - interval ''8 s''', place.processes) INTO late;
		CONTINUE WHEN late IS NULL;
		IF NOT pg_try_advisory_xact_lock(1885827698) THEN
			RETURN;
		ELSIF EXISTS (SELECT FROM unnest(late) p WHERE NOT EXISTS (SELECT FROM rate_limit_lost l WHERE (l.processes, l.process) = (place.processes::text, p)))
		THEN
			EXECUTE format('INSERT INTO rate_limit_lost (processes, process, units)
				SELECT $1, p, coalesce(h.units, ''{}'') FROM unnest($2) p LEFT JOIN (
					SELECT s.process, jsonb_object_agg(s.prefix, s.units) AS units FROM (
						SELECT c.held[i][1] AS process, c.prefix, sum(c.held[i][2]) AS units
						FROM (SELECT prefix, held FROM %s WHERE held IS NOT NULL
							UNION ALL SELECT prefix, held FROM %s WHERE held IS NOT NULL) c,
							generate_subscripts(c.held, 1) i
						WHERE c.held[i][1] = ANY ($2) AND c.held[i][2] > 0 GROUP BY 1, 2) s
					GROUP BY 1) h ON h.process = p
				ON CONFLICT DO NOTHING', place.counters[1], place.counters[2])
				USING place.processes::text, late;
		END IF;
		EXECUTE format('WITH reported AS (UPDATE %s SET seen = ''-infinity'' WHERE process = ANY ($2)
				AND seen > ''-infinity'' AND seen < clock_timestamp() - interval ''8 s''
				AND process IN (SELECT l.process FROM rate_limit_lost l WHERE l.processes = $1
					AND l.found_at < clock_timestamp() - interval ''10 s'') RETURNING process)
			UPDATE rate_limit_lost l SET reported_at = now() FROM reported t
			WHERE (l.processes, l.process) = ($1, t.process)', place.processes)
			USING place.processes::text, late;
	END LOOP;
	IF EXISTS (SELECT FROM rate_limit_lost l WHERE l.reported_at IS NULL OR l.reported_at = now()) THEN
		DELETE FROM rate_limit_lost l WHERE l.reported_at < now() - interval '30 days' OR l.reported_at = now() AND l.units = '{}' OR l.reported_at IS NULL
			AND l.found_at < clock_timestamp() - interval '20 s';
		RETURN QUERY SELECT u.units, u.summary FROM rate_limit_lost_units() u WHERE u.at = now();
	END IF;
END $$;
--;
COMMENT ON TABLE rate_limit_lost IS 'Names of processes that were not renewed for 8 seconds and were not ended, with what their running requests held. What these requests cost is not charged if the process was killed.';
--;
COMMENT ON COLUMN rate_limit_lost.processes IS 'The table of the name.';
--;
COMMENT ON COLUMN rate_limit_lost.process IS 'The name.';
--;
COMMENT ON COLUMN rate_limit_lost.units IS 'The units that each limit held, by its prefix. Money is in millionths.';
--;
COMMENT ON COLUMN rate_limit_lost.found_at IS 'When the units were counted.';
--;
COMMENT ON COLUMN rate_limit_lost.reported_at IS 'When a proxy has reported it, 10 seconds later. NULL: not yet.';
--;
COMMENT ON FUNCTION rate_limit_lost_units IS 'What killed processes held that were reported within a day (at), as a sum and as a sentence.';
--;
COMMENT ON FUNCTION rate_limit_lost_upkeep IS 'Returns once what the running requests of a killed process held, as rate_limit_lost_units, or else no row. Proxies run it each second.';
--;
CREATE OR REPLACE FUNCTION rate_limit_behind(applied text, log oid, made_before timestamptz DEFAULT 'infinity') RETURNS bigint
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT count(*) FROM rate_limit_changes c WHERE c.at < made_before AND c.xid >= pg_snapshot_xmin(applied::pg_snapshot) AND NOT pg_visible_in_snapshot(c.xid, applied::pg_snapshot)
		HAVING applied IS NOT NULL AND coalesce(log = to_regclass('rate_limit_changes'), true));
EXCEPTION WHEN data_exception OR undefined_table THEN
	RETURN NULL; -- a proxy may report anything, and this database may lack the policy
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_has_applied(applied text, log oid, change xid8) RETURNS boolean
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN coalesce(log = to_regclass('rate_limit_changes'), true) AND pg_visible_in_snapshot(change, applied::pg_snapshot);
EXCEPTION WHEN data_exception THEN
	RETURN false;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_read_report(report json) RETURNS rate_limit_report
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	readable rate_limit_report;
	field text;
BEGIN
	RETURN json_populate_record(readable, report);
EXCEPTION WHEN data_exception THEN
	report := regexp_replace(report::text, '\\u(0000|d[89a-f]..)', '\\ufffd', 'gi');
	FOR field IN SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'rate_limit_report'::regclass LOOP
		CONTINUE WHEN (report -> field)::text LIKE '%\\ufffd%';
		BEGIN
			readable := json_populate_record(readable, json_build_object(field, report -> field));
		EXCEPTION WHEN data_exception THEN
			NULL;
		END;
	END LOOP;
	RETURN readable;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_reported_at(seen timestamptz, clock bigint, at bigint)
	RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
	RETURN seen + (at - clock) * interval '1 us';
EXCEPTION WHEN data_exception THEN
	RETURN NULL;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_proxies WITH (security_invoker) AS SELECT n.node || CASE WHEN n.twin > 1 THEN '#' || n.twin ELSE '' END AS node, r.region, r.version,
		(n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s' AND n.system = (SELECT system_identifier FROM pg_control_system())) AS live, n.ended, r.cannot, n.epoch, r.applied IS NOT NULL AS policy,
		rate_limit_behind(r.applied, r.log) AS behind, n.seen, rate_limit_reported_at(n.seen, r.clock, r.local_from) AS local_from, rate_limit_reported_at(n.seen, r.clock, r.local_until) AS local_until,
		extract(epoch FROM clock_timestamp() - n.seen)::float8 AS seconds_ago, coalesce(r.problems, '{}') AS problems, r.requests[1] AS admitted, r.requests[2] AS limited,
		r.requests[3] AS blocked, r.requests[4] AS rejected, r.requests[5] AS overloaded, r.requests[6] AS failed, rate_limit_reported_at(n.seen, r.clock, r.open_from) AS open_from,
		rate_limit_reported_at(n.seen, r.clock, r.open_until) AS open_until, r.open_passed, r.open_refused, r.locally, r.busiest, rate_limit_behind(r.applied, r.log, n.seen - interval '10 s') AS late,
		coalesce(r.lost, 0) AS lost, rate_limit_reported_at(n.seen, r.clock, r.lost_at) AS lost_at, round(r.clock / 1000000.0 - extract(epoch FROM n.seen))::bigint AS seconds_ahead,
		(SELECT sum(t) FROM unnest(r.requests) t)::bigint - r.requests[1] - r.requests[5] - r.requests[6] AS refused, r.requests[5] + r.requests[6] AS undecided FROM (
		SELECT m.*, row_number() OVER (PARTITION BY m.node, m.ended IS NULL ORDER BY m.epoch) AS twin FROM rate_limit_nodes m WHERE m.system = (SELECT system_identifier FROM pg_control_system()) ) AS n, rate_limit_read_report(n.report) AS r;
--;
CREATE OR REPLACE FUNCTION rate_limit_unknown_zones() RETURNS TABLE (zone text, users bigint, limits text[])
	LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF rate_limit_may_read('users', 'rule_limits') AND to_regprocedure('rate_limit_known_zone(text)') IS NOT NULL THEN
		RETURN QUERY WITH RECURSIVE found(name) AS ( SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone <> 'UTC'
			UNION ALL SELECT (SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone > f.name AND u.time_zone <> 'UTC') FROM found f WHERE f.name IS NOT NULL
		), named AS (SELECT f.name FROM found f UNION SELECT l.time_zone FROM rate_limit_rule_limits l)
		SELECT n.name, (SELECT count(*) FROM rate_limit_users u WHERE u.time_zone = n.name AND u.time_zone <> 'UTC'),
			ARRAY(SELECT concat(l.rule, '/', l.name) FROM rate_limit_rule_limits l WHERE l.time_zone = n.name ORDER BY 1)
		FROM named n WHERE n.name IS NOT NULL AND rate_limit_known_zone(n.name) IS NULL;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_unlimited() RETURNS TABLE (tier text, users bigint)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	most CONSTANT int := 10000; -- The page asks all the time, so not all users are counted.
BEGIN
	IF rate_limit_may_read('tiers', 'users', 'api_keys', 'rules') THEN
		RETURN QUERY SELECT t.tier, n.users FROM (SELECT t.* FROM rate_limit_tiers t WHERE NOT EXISTS ( SELECT FROM rate_limit_rules r WHERE r.mode = 'enforce' AND r.valid @> now()
					AND (t.tier = ANY (r.tiers) OR r.tiers IS NULL AND r.action = 'limit' AND rate_limit_conditions(r) = '{}')) OFFSET 0) AS t,
			LATERAL (SELECT count(*) AS users FROM ( (SELECT u.user_id FROM rate_limit_users u WHERE u.tier = t.tier AND u.tier_until > now() LIMIT most)
				UNION (SELECT u.user_id FROM rate_limit_users u WHERE t.tier = 'anonymous' AND u.tier_until <= now() AND u.tier_until < 'infinity' LIMIT most)
				UNION (SELECT k.user_id FROM rate_limit_api_keys k WHERE k.tier = t.tier AND least(k.revoked_at, k.expires_at) > now() LIMIT most)) AS u) AS n
		WHERE n.users > 0 ORDER BY t.rank, t.tier;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_exposed() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('grants') THEN
		RETURN QUERY SELECT format('The role %s may %s on %s%s, which rate_limit_grant has not granted. To take that back: SELECT rate_limit_revoke(%L)', quote_ident(s.role),
			string_agg(DISTINCT s.privilege || CASE WHEN s.grantable THEN ' WITH GRANT OPTION' ELSE '' END, ', '),
			array_to_string((array_agg(DISTINCT s.object))[1:8], ', '),
			' and ' || nullif(greatest(count(DISTINCT s.object) - 8, 0), 0) || ' others', s.role)
		FROM rate_limit_surplus() s GROUP BY s.role ORDER BY 1;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_hidden() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('grants') THEN
		RETURN QUERY SELECT format('Row level security hides rows from the role %I. To switch it off (or ALTER ROLE %1$I BYPASSRLS): %s', r.rolname,
			string_agg(format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', c.oid::regclass), '; ' ORDER BY c.oid::regclass::text))
		FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner OR r.rolname IN (SELECT g.role FROM rate_limit_grants g)
		WHERE c.relname LIKE 'rate\_limit\_%' AND c.relrowsecurity AND NOT c.relispartition AND c.relnamespace = ANY (rate_limit_schemas()) AND NOT (r.rolsuper OR r.rolbypassrls)
			AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
			AND has_any_column_privilege(r.oid, c.oid, 'SELECT')
		GROUP BY r.rolname ORDER BY 1;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_unpriced() RETURNS TABLE (price text, part text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	condition CONSTANT text := 'num_nonnulls(audio_input, audio_cache_read, audio_output, image_input, image_output, search, lines) > 0 AND day > (now() AT TIME ZONE ''UTC'')::date - 8 '
		'AND kind = ''charge''';
	source text;
BEGIN
	IF rate_limit_may_read('prices', 'ledger') THEN
		SELECT string_agg(format('(SELECT to_jsonb(t) - ''lines'' AS one, t.lines FROM %s t WHERE %s ORDER BY t.time DESC LIMIT 300)', l, condition), ' UNION ALL ') INTO source FROM rate_limit_ledgers() l;
		RETURN QUERY EXECUTE format('SELECT p.model, c.part
			FROM (SELECT DISTINCT coalesce(o ->> ''price'', o ->> ''model'') AS model,
					coalesce(o ->> ''price_valid'', ''(,)'') AS valid, n.part
				FROM (%s) l, jsonb_array_elements(l.one || coalesce(l.lines, ''[]'')) AS o,
					unnest(''{search,audio_input,audio_cache_read,audio_output,image_input,image_output}''
						::text[]) AS n(part)
				WHERE (o ->> n.part)::numeric > 0) AS c
			JOIN rate_limit_prices p ON p.model = c.model AND p.valid = c.valid::tstzrange
			WHERE concat_ws('' '', array_to_string(p.parts, '' ''), array_to_string(p.tiers, '' ''))
				!~ (''(^|[ .])'' || replace(c.part, ''cache_read'', ''(cache_read|input)'') || ''[@=]'')
			ORDER BY 1, 2', source);
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_price_age() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('prices', 'rules', 'rule_limits') THEN
		RETURN QUERY SELECT CASE WHEN d.days IS NULL THEN 'No model has a price, so limits in money refuse all models.' ELSE format('The newest price is %s old.', CASE d.days WHEN 0 THEN 'less than a day'
				WHEN 1 THEN '1 day' ELSE d.days || ' days' END) END
			FROM (SELECT floor(extract(epoch FROM now() - max(p.updated_at)) / 86400) AS days FROM rate_limit_prices p) AS d
			WHERE EXISTS (SELECT FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule WHERE l.unit = 'money' AND r.mode <> 'off');
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_vacuum_holders() RETURNS SETOF text LANGUAGE sql STABLE AS $$
	SELECT format('Vacuum keeps what the last %s transactions have replaced, which slows down decisions about busy keys, because of %s%s. %s', h.age, h.who, ', since '
			|| to_char(h.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', h.remedy)
	FROM ( SELECT greatest(age(a.backend_xid), age(a.backend_xmin)) AS age, a.xact_start AS since, CASE WHEN a.datid IS NULL THEN 'a standby with hot_standby_feedback, of the session ' || a.pid
				ELSE format('the session %s of the role %I (%s)', a.pid, a.usename, concat_ws(', ', nullif(a.application_name, ''), coalesce(a.state, format('without '
						'pg_read_all_stats, %I does not see since when', current_user)))) END AS who,
			CASE WHEN a.datid IS NULL THEN 'End the old transactions on the standby' ELSE format('To end it: SELECT pg_terminate_backend(%s)', a.pid) END AS remedy
		FROM pg_stat_activity a WHERE (a.datname = current_database() OR a.datid IS NULL) AND a.pid <> ALL (ARRAY(SELECT v.pid FROM pg_stat_progress_vacuum v) || pg_backend_pid())
		UNION ALL
		SELECT age(p.transaction), p.prepared, format('the prepared transaction %L of the role %I', p.gid, p.owner), format('To end it: ROLLBACK PREPARED %L', p.gid)
		FROM pg_prepared_xacts p WHERE p.database = current_database()
		UNION ALL
		SELECT greatest(age(s.xmin), age(s.catalog_xmin)), NULL, format('the %s replication slot %L%s', CASE WHEN s.active THEN 'active' ELSE 'unused' END, s.slot_name,
			CASE WHEN s.xmin IS NULL THEN ', in system catalogs' END),
			CASE WHEN s.active THEN 'End the old transactions of who reads it' ELSE format('To drop it: SELECT pg_drop_replication_slot(%L)', s.slot_name) END
		FROM pg_replication_slots s
	) h WHERE h.age > CASE WHEN h.since < now() - interval '1 minute' THEN 1000 ELSE 10000 END
	ORDER BY h.age DESC LIMIT 5
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_billing_differs() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY WITH c AS MATERIALIZED (SELECT * FROM rate_limit_calendars())
		SELECT format('The limit %s/%s begins its windows in %s, but invoices of the tier %s %sin %s.', c.rule, c.limit_name, c.zone, string_agg(to_json(c.tier)::text, ', ' ORDER BY c.tier), b.own, b.zone)
		FROM c JOIN (SELECT f.tier, f.zone, '' AS own, false AS anchored FROM c f WHERE f.place = 1 UNION SELECT u.tier, u.time_zone, 'by time_zone ', u.period_start IS NOT NULL
			FROM (SELECT * FROM rate_limit_users u WHERE u.time_zone <> 'UTC' LIMIT 10000) u) b USING (tier)
		WHERE c.zone <> b.zone AND NOT (b.anchored AND c.unit IN ('month', 'year'))
		GROUP BY c.rule, c.limit_name, c.zone, b.own, b.zone ORDER BY 1;
	END IF;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_state WITH (security_invoker) AS WITH proxies AS ( SELECT p.*, p.cannot IS NOT NULL OR coalesce(p.open_until > now() - interval '2 minutes', false) AS open,
			NOT p.policy AND bool_or(p.policy AND p.live) OVER () AS without_policy FROM rate_limit_proxies p WHERE p.live OR p.ended IS NULL AND p.seen > now() - interval '10 minutes' ), problems AS (
		SELECT s.place, s.state, p.node, p.node || ' ' || s.text AS summary FROM proxies p CROSS JOIN LATERAL (VALUES (1, 'open', p.cannot IS NOT NULL, 'cannot decide: its role lacks privileges, and on_error says '
				'what becomes of requests. To grant them: ' || p.cannot), (2, 'silent', true, format('last reported at %s UTC: if it runs, it does not reach this database.', to_char(p.seen AT TIME ZONE 'UTC', 'HH24:MI:SS'))),
			(3, CASE WHEN p.open THEN 'open' ELSE 'was open' END, p.open_until > now() - interval '1 hour' AND (p.open OR p.open_passed > 0), format('had requests without a decision from %s until %s UTC: on_error let %s pass, and '
					'refused %s.', to_char(p.open_from AT TIME ZONE 'UTC', 'HH24:MI:SS'), to_char(p.open_until AT TIME ZONE 'UTC', 'HH24:MI:SS'), p.open_passed, p.open_refused)),
			(3, CASE WHEN p.local_until > now() - interval '2 minutes' THEN 'local' ELSE 'was local' END, p.local_until > now() - interval '1 hour', format('limited by itself, at its share of each limit, from %s until %s UTC.',
					to_char(p.local_from AT TIME ZONE 'UTC', 'HH24:MI:SS'), to_char(p.local_until AT TIME ZONE 'UTC', 'HH24:MI:SS'))), (4, 'without a policy', p.without_policy, 'has no policy, and other proxies have one: no rule and no ban holds there.'),
			(5, 'wrong clock', abs(p.seconds_ahead) > 60, format('has a clock that is %s s %s the clock of the server: keys, rules, bans and prices begin and end there by that clock.',
				abs(p.seconds_ahead), CASE WHEN p.seconds_ahead > 0 THEN 'ahead of' ELSE 'behind' END)), (5, 'behind', p.policy AND p.late IS DISTINCT FROM 0, format('has yet to %s of the policy.',
				CASE WHEN p.late IS NULL THEN 'read the tables' WHEN p.late = 1 THEN 'apply 1 change' ELSE 'apply ' || p.late || ' changes' END)) ) AS s(place, state, holds, text) WHERE s.holds AND p.live = (s.state <> 'silent') UNION ALL
		SELECT 5, 'lost', p.node, format('%s has lost %s until %s UTC: what these requests cost is not charged.', p.node, CASE p.lost WHEN 1 THEN '1 settlement' ELSE p.lost || ' settlements' END,
			to_char(p.lost_at AT TIME ZONE 'UTC', 'HH24:MI:SS')) FROM rate_limit_proxies p WHERE p.lost_at > now() - interval '1 day' UNION ALL SELECT 5, 'lost', NULL, u.summary FROM rate_limit_lost_units() AS u UNION ALL
		SELECT 6, CASE WHEN problem LIKE 'rule %' THEN 'unusable' ELSE 'problem' END, p.node, format('%s has a problem: %s', p.node, problem) FROM proxies p, unnest(p.problems) AS problem WHERE p.live UNION ALL
		SELECT 7, 'unknown zone', NULL, format('The server does not know the time zone %s of %s: a limit has windows in UTC instead, and a user has windows in the zone of the limit.', z.zone,
			concat_ws(' and ', CASE z.users WHEN 0 THEN NULL WHEN 1 THEN '1 user' ELSE z.users || ' users' END, nullif(array_to_string(z.limits, ', '), ''))) FROM rate_limit_unknown_zones() AS z UNION ALL
		SELECT 7, 'vacuum', NULL, v FROM rate_limit_vacuum_holders() AS v UNION ALL SELECT 8, 'hidden', NULL, h FROM rate_limit_hidden() AS h UNION ALL SELECT 8, 'exposed', NULL, e FROM rate_limit_exposed() AS e UNION ALL
		SELECT 9, 'unlimited', NULL, format('The tier %s has %s, and no rule limits it.', to_json(t.tier), CASE t.users WHEN 1 THEN '1 user' ELSE t.users || ' users' END) FROM rate_limit_unlimited() t UNION ALL
		SELECT 10, 'prices', NULL, a FROM rate_limit_price_age() AS a UNION ALL SELECT 10, 'periods', NULL, d FROM rate_limit_billing_differs() AS d UNION ALL
		SELECT 10, 'unpriced', NULL, format('The price %s has charged %s without a price of its own, in the last 7 days.', to_json(u.price), string_agg(u.part, ', ' ORDER BY u.part)) FROM rate_limit_unpriced() u GROUP BY u.price )
	SELECT f.state, f.node, f.summary FROM ( SELECT 0 AS place, CASE WHEN a.live = 0 THEN 'stopped' WHEN a.open THEN 'open' WHEN EXISTS (SELECT FROM problems s WHERE s.state NOT LIKE 'was %' AND s.place < 9) THEN 'warning'
				ELSE 'enforcing' END AS state, NULL::text AS node, concat(CASE a.live WHEN 0 THEN 'No proxy counts in this database' ELSE format('Limits are enforced by %s of %s', a.enforcing,
					CASE a.known WHEN 1 THEN '1 proxy' ELSE a.known || ' proxies' END) END, format(CASE a.known - a.live WHEN 0 THEN '' WHEN 1 THEN '; %s has not reported for %s s: if it runs, its on_error setting decides there'
					ELSE '; %s have not reported for %s s or longer: where they run, their on_error settings decide' END, a.known - a.live, a.silence::bigint), '.') AS summary FROM (SELECT count(*) AS known, count(*) FILTER (WHERE p.live) AS live,
				count(*) FILTER (WHERE p.live AND NOT p.open AND NOT p.without_policy) AS enforcing, bool_or(p.open AND p.live) AS open, min(p.seconds_ago) FILTER (WHERE NOT p.live) AS silence FROM proxies p) AS a UNION ALL SELECT * FROM problems
	) AS f ORDER BY f.place, f.node, f.state;
--;
COMMENT ON FUNCTION rate_limit_behind IS 'The number of policy changes before the time made_before that a proxy has not applied yet. applied and log are from the proxy''s report. NULL: the proxy has no policy, or has read another log of changes.';
--;
COMMENT ON FUNCTION rate_limit_has_applied IS 'Whether a proxy applies the changes of a transaction. applied and log are from the proxy''s report. NULL: the proxy has no policy.';
--;
COMMENT ON TYPE rate_limit_report IS 'The fields of rate_limit_nodes.report.';
--;
COMMENT ON FUNCTION rate_limit_read_report IS 'The fields of a proxy''s report. A field that cannot be read is NULL.';
--;
COMMENT ON FUNCTION rate_limit_reported_at IS 'The time at of a proxy''s report, by the clock of the database. The report was written at seen, which was clock by the clock of the proxy. NULL: there is no such time.';
--;
COMMENT ON VIEW rate_limit_proxies IS 'The proxies of this server and their progress. Rows of rate_limit_nodes from a copy of another server are left out. Of several proxies with one name, the second one has the suffix #2.';
--;
COMMENT ON COLUMN rate_limit_proxies.region IS 'The region in the proxy''s configuration, if any.';
--;
COMMENT ON COLUMN rate_limit_proxies.version IS 'The version of the proxy''s program.';
--;
COMMENT ON COLUMN rate_limit_proxies.live IS 'Whether the proxy runs.';
--;
COMMENT ON COLUMN rate_limit_proxies.cannot IS 'The statement that would grant the proxy''s role the privileges to decide. NULL: the role has the privileges.';
--;
COMMENT ON COLUMN rate_limit_proxies.policy IS 'Whether the proxy has a policy.';
--;
COMMENT ON COLUMN rate_limit_proxies.behind IS 'The number of policy changes that the proxy has not applied yet. NULL: the proxy has no policy, or has not read the tables since they were restored.';
--;
COMMENT ON COLUMN rate_limit_proxies.local_from IS 'When the proxy last started to limit by itself, because the database made no decisions. NULL: never.';
--;
COMMENT ON COLUMN rate_limit_proxies.local_until IS 'When the proxy last stopped limiting by itself.';
--;
COMMENT ON COLUMN rate_limit_proxies.seconds_ago IS 'The seconds since seen.';
--;
COMMENT ON COLUMN rate_limit_proxies.problems IS 'The rules that the proxy cannot use, each with the permitted values; sites of the proxy that let requests without an API key pass without a limit; and what a server refuses in the DSN of another database of the proxy.';
--;
COMMENT ON COLUMN rate_limit_proxies.admitted IS 'The number of admitted requests since the start of the proxy, including local decisions.';
--;
COMMENT ON COLUMN rate_limit_proxies.limited IS 'The same with this outcome.';
--;
COMMENT ON COLUMN rate_limit_proxies.blocked IS 'The same with this outcome.';
--;
COMMENT ON COLUMN rate_limit_proxies.rejected IS 'The same with this outcome.';
--;
COMMENT ON COLUMN rate_limit_proxies.overloaded IS 'The same with this outcome.';
--;
COMMENT ON COLUMN rate_limit_proxies.failed IS 'The same with this outcome.';
--;
COMMENT ON COLUMN rate_limit_proxies.refused IS 'The same for all requests that a decision refused.';
--;
COMMENT ON COLUMN rate_limit_proxies.undecided IS 'The same for overloaded and failed requests.';
--;
COMMENT ON COLUMN rate_limit_proxies.open_from IS 'When the last series of overloaded and failed requests began. A pause of an hour ends a series.';
--;
COMMENT ON COLUMN rate_limit_proxies.open_until IS 'When a request last had no decision. NULL: never since the start of the proxy.';
--;
COMMENT ON COLUMN rate_limit_proxies.open_passed IS 'The number of requests in the last series that passed.';
--;
COMMENT ON COLUMN rate_limit_proxies.open_refused IS 'The number of requests in the last series that did not pass.';
--;
COMMENT ON COLUMN rate_limit_proxies.locally IS 'The number of requests that the proxy decided without the database, at its share of each limit.';
--;
COMMENT ON COLUMN rate_limit_proxies.busiest IS 'The proxy''s limits with the most requests since its start, at most 20: {prefix: [admitted, limited]}.';
--;
COMMENT ON COLUMN rate_limit_proxies.late IS 'The number of changes in behind that were made at least 10 seconds before seen.';
--;
COMMENT ON COLUMN rate_limit_proxies.lost IS 'The number of settlements since the start of the proxy that may not have arrived: what these requests cost may not be charged. The row of such a proxy stays for a day after its end.';
--;
COMMENT ON COLUMN rate_limit_proxies.lost_at IS 'When the last of them was lost.';
--;
COMMENT ON COLUMN rate_limit_proxies.seconds_ahead IS 'The seconds by which the clock of the proxy was ahead of the clock of the server.';
--;
COMMENT ON FUNCTION rate_limit_unknown_zones IS 'The time zones of the policy that the server does not know, with the number of their users, and their limits.';
--;
COMMENT ON FUNCTION rate_limit_unlimited IS 'The tiers that users or their API keys have and that no rule in force limits, with the numbers of users: a number of 10,000 or more may be too low. The tier anonymous includes users with a tier that has ended.';
--;
COMMENT ON FUNCTION rate_limit_exposed IS 'A sentence about each role with rights that rate_limit_grant has not granted, with the statement that takes them back.';
--;
COMMENT ON FUNCTION rate_limit_hidden IS 'A sentence about each role from which row level security hides rows, with the statements that end it.';
--;
COMMENT ON FUNCTION rate_limit_unpriced IS 'The rows of prices that have charged searches, sound or pictures without a price of their own, by the newest such rows of the ledger, of the last 7 days.';
--;
COMMENT ON FUNCTION rate_limit_price_age IS 'A sentence about the age of the newest price, if rules have limits in money that are not off.';
--;
COMMENT ON FUNCTION rate_limit_vacuum_holders IS 'A sentence about each of the five oldest sessions, prepared transactions and replication slots of this server that keep vacuum from removing what the last 10,000 transactions have replaced, or the last 1,000 for more than a minute, with what ends it.';
--;
COMMENT ON FUNCTION rate_limit_billing_differs IS 'A sentence about each calendar limit in money with another time zone than invoices of its users.';
--;
COMMENT ON VIEW rate_limit_state IS 'Whether limits are enforced, as a sentence. The first row is about all limits, each other row about a proxy, a time zone, a role or a tier.';
--;
COMMENT ON COLUMN rate_limit_state.state IS 'enforcing; warning: see the other rows; open: requests have no decision; stopped: no proxy reports. States of a proxy: open; silent: it has not reported for 10 seconds; local: it decides without the database; was open or was local: within the last hour; without a policy; wrong clock: by more than a minute; behind; lost: settlements, within the last day, or units of a killed proxy, without a node; unusable: a rule; problem. State of a time zone: unknown zone. State of the server: vacuum, see rate_limit_vacuum_holders. States of a role: hidden, see rate_limit_hidden; exposed, see rate_limit_exposed. State of a tier that users have and no rule limits: unlimited. States of prices: prices, the age of the newest one if there are limits in money; unpriced: searches, sound or pictures had the price of their neighbor, or none. These three are no reason for a warning.';
--;
COMMENT ON COLUMN rate_limit_state.node IS 'The proxy of the sentence. NULL: all proxies, or a time zone, a role or a tier.';
--;
COMMENT ON COLUMN rate_limit_state.summary IS 'The sentence.';
--;
COMMENT ON TABLE rate_limit_secrets IS 'Random texts that the proxies share. Clients must not see them.';
--;
COMMENT ON COLUMN rate_limit_secrets.name IS 'The purpose. partition: to digest keys for the parameter pk of the header fields RateLimit and RateLimit-Policy.';
--;
COMMENT ON COLUMN rate_limit_secrets.value IS 'The secret.';
--;
CREATE OR REPLACE FUNCTION rate_limit_owns_history() RETURNS boolean
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT pg_has_role(rate_limit_caller(), c.relowner, 'USAGE') FROM pg_class c
	WHERE c.oid = 'rate_limit_retention'::regclass
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_partitions(parent text DEFAULT 'rate_limit_audit') RETURNS TABLE (id oid, name text, begins timestamptz, ends timestamptz)
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT p.id, p.name, CASE p.first WHEN 'MINVALUE' THEN '-infinity' ELSE p.first END::timestamptz, CASE p.last WHEN 'MAXVALUE' THEN 'infinity' ELSE p.last END::timestamptz
	FROM (SELECT c.oid AS id, format('%I.%I', n.nspname, c.relname) AS name, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM [(]''?([^'')]+)') AS first,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''?([^'')]+)') AS last
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1::regclass) AS p
	ORDER BY 3
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_make_partition(day date, parent text DEFAULT 'rate_limit_audit')
	RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	space CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = parent::regclass);
	name text;
	same record;
BEGIN
	IF day IS NULL OR day < date '0001-01-01' OR day > date '9999-12-31' THEN
		RAISE EXCEPTION 'day: %: must be a day from 0001-01-01 to 9999-12-31', coalesce(day::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		IF EXISTS (SELECT FROM rate_limit_partitions(parent) p WHERE p.begins <= day::timestamptz AND p.ends > day::timestamptz) THEN
			RETURN NULL;
		END IF;
		EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent::regclass);
	END LOOP;
	IF abs(day - (now() AT TIME ZONE 'UTC')::date) > 8 AND NOT rate_limit_owns_history() THEN
		RAISE EXCEPTION 'day: %: must be within 8 days of today, because % does not own the tables', day, rate_limit_caller() USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR n IN 1..1000 LOOP
		name := concat(space, '.', parent, to_char(day, '_YYYYMMDD'), '_' || nullif(n, 1));
		EXIT WHEN to_regclass(name) IS NULL;
	END LOOP;
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', name, parent::regclass);
	PERFORM rate_limit_strip(ARRAY[name::regclass::oid]);
	FOR same IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = name::regclass AND i.indisunique LOOP
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', name, same.relname);
	END LOOP;
	IF NOT FOUND THEN -- a publication of deletes would otherwise refuse them
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
	END IF;
	EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent::regclass, name, day::timestamptz, (day + 1)::timestamptz);
	RETURN name;
EXCEPTION WHEN duplicate_table OR invalid_object_definition THEN
	IF current_setting('transaction_isolation') = 'read committed' THEN
		RAISE;
	END IF;
	RETURN NULL;
END $$;
--;
COMMENT ON FUNCTION rate_limit_owns_history IS 'Whether the calling role has the rights of the owner of the history.';
--;
COMMENT ON FUNCTION rate_limit_partitions IS 'The partitions of a table of the history, with their schemas, starts and ends.';
--;
COMMENT ON FUNCTION rate_limit_make_partition IS 'Creates the partition of a table of the history for a day in UTC, and returns its name with the schema, or NULL if it exists already. Writers do not wait. The name is rate_limit_audit_YYYYMMDD, followed by _2 if a detached table has that name. For a role that does not own the tables, the day must be within 8 days of today.';
--;
CREATE OR REPLACE FUNCTION rate_limit_add(a numeric, b bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN least(coalesce(a, 0) + b, 9223372036854775807);
--;
CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[]
	LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	FOR i IN 1..coalesce(array_length(b, 1), 0) LOOP
		CONTINUE WHEN b[i] = 0 AND a[i] IS NOT NULL; -- most elements of a second are 0
		a[i] := least(coalesce(a[i], 0)::numeric + coalesce(b[i], 0), 9223372036854775807);
	END LOOP;
	RETURN a;
END $$;
--;
COMMENT ON FUNCTION rate_limit_add IS 'The sum of two numbers, at most the largest bigint, so that no number from a proxy makes a sum fail. NULL in a counts as 0.';
--;
COMMENT ON FUNCTION rate_limit_add_buckets IS 'The sum of two arrays, element by element. Missing elements count as 0.';
--;
CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p float8) RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (SELECT 0.1 * power(2::float8, CASE u.i WHEN 1 THEN 0 WHEN 78 THEN 76 ELSE u.i - 1.5 END / 4)
	FROM (SELECT b.i, b.n, sum(b.n) OVER (ORDER BY b.i)::float8 AS upto, least(greatest(ceil(p * sum(b.n) OVER ()), 1), sum(b.n) OVER ())::float8 AS rank FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u
	WHERE u.n > 0 AND u.upto >= u.rank ORDER BY u.i LIMIT 1);
--;
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[], INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);
--;
CREATE OR REPLACE VIEW rate_limit_traffic WITH (security_invoker) AS SELECT rate_limit_percentile(m.durations, 0.5) AS p50_ms, rate_limit_percentile(m.durations, 0.95) AS p95_ms, rate_limit_percentile(m.durations, 0.99) AS p99_ms, m.*
	FROM rate_limit_metrics m;
--;
COMMENT ON FUNCTION rate_limit_percentile IS 'The p-quantile of decision times in milliseconds, such as p95 for p = 0.95. Bucket 1 counts times up to 0.1 ms, with the result 0.1, bucket i longer times up to 0.1 * 2^((i-1)/4) ms, and bucket 78 all times above 52 s, with the result 52428.8. The result is the geometric middle of its bucket: between 0.1 and 52428.8 it differs by at most 9.1 % from the exact time. NULL: there are no decisions. To combine several rows, add their buckets with rate_limit_sum.';
--;
COMMENT ON AGGREGATE rate_limit_sum(bigint[]) IS 'The sum of arrays, element by element, such as the durations of several rows of rate_limit_metrics.';
--;
COMMENT ON VIEW rate_limit_traffic IS 'rate_limit_metrics with percentiles of decision times.';
--;
COMMENT ON COLUMN rate_limit_traffic.p50_ms IS 'The median time of a decision, in milliseconds.';
--;
COMMENT ON COLUMN rate_limit_traffic.p95_ms IS 'The time that 95 % of the decisions did not exceed, in milliseconds.';
--;
COMMENT ON COLUMN rate_limit_traffic.p99_ms IS 'The time that 99 % of the decisions did not exceed, in milliseconds.';
--;
CREATE OR REPLACE FUNCTION rate_limit_begin_batch(writer text, node text, region text, batch bigint,
	written bigint, dropped bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
	PERFORM set_config('lock_timeout', '1s', true);
	INSERT INTO rate_limit_writers AS w (writer, node, region, batch, written, dropped, seen) VALUES ($1, $2, nullif($3, ''), $4, $5, $6, now())
	ON CONFLICT (writer) DO UPDATE SET node = excluded.node, region = excluded.region, batch = excluded.batch, written = excluded.written, dropped = excluded.dropped, seen = excluded.seen
		WHERE w.batch < excluded.batch;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'batch % of this writer is written already', $4 USING ERRCODE = 'unique_violation';
	END IF;
END $$;
--;
DO $do$ DECLARE definition text;
BEGIN FOR definition IN WITH columns AS ( SELECT a.attrelid, a.attname AS name, a.attnum AS n, a.attnotnull AS needed, format_type(a.atttypid, NULL) AS type, a.atttypid IN ('int8'::regtype, 'int4'::regtype, 'timestamptz'::regtype) AS number
			FROM pg_attribute a WHERE a.attrelid IN ('rate_limit_audit'::regclass, 'rate_limit_metrics'::regclass) AND a.attnum > 0 AND NOT a.attisdropped AND a.attname NOT IN ('node', 'region', 'id', 'granularity') ), lists AS (
			SELECT c.attrelid = 'rate_limit_audit'::regclass AS of_audit, string_agg(quote_ident(c.name), ', ' ORDER BY c.n) AS names, string_agg(format('%I %s[]', c.name, CASE WHEN c.number THEN 'bigint' ELSE 'text' END), ', '
					ORDER BY c.n) AS arguments, string_agg(format('unnest(%1$I) AS %1$I', c.name), ', ' ORDER BY c.n) AS elements, string_agg(format(CASE WHEN c.name = 'time' AND c.attrelid = 'rate_limit_metrics'::regclass
							THEN 'date_trunc(g.granularity, timestamptz ''epoch'' + r.time * interval ''1 us'', ''UTC'')' WHEN c.type LIKE 'timestamp%' THEN 'timestamptz ''epoch'' + r.%1$I * interval ''1 us'''
						WHEN c.number AND NOT c.needed THEN 'CASE WHEN r.%1$I >= 0 THEN r.%1$I END' WHEN c.needed THEN 'r.%1$I::%2$s' ELSE 'nullif(r.%1$I, '''')::%2$s' END, c.name, c.type), ', ' ORDER BY c.n) AS values,
				string_agg(quote_ident(c.name), ' || ' ORDER BY c.n) FILTER (WHERE c.number) AS numbers, string_agg(format('%1$I = ' || CASE c.type WHEN 'bigint' THEN 'rate_limit_add' WHEN 'bigint[]' THEN 'rate_limit_add_buckets'
						ELSE 'greatest' END || '(m.%1$I, excluded.%1$I)', c.name), ', ' ORDER BY c.n) FILTER (WHERE c.n > last.n) AS additions FROM columns c, (SELECT n FROM columns WHERE name = 'endpoint') AS last GROUP BY c.attrelid ) SELECT format($f$
CREATE OR REPLACE FUNCTION rate_limit_record_%s(region text, %s) RETURNS void
	LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
	%s
	FOR attempt IN 1..2 LOOP
		BEGIN
			%s;
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition(d.day, p) FROM (SELECT DISTINCT ((timestamptz 'epoch' + t * interval '1 us') AT TIME ZONE 'UTC')::date AS day FROM unnest("time") AS t
				ORDER BY day) d, unnest(%L::text[]) AS p;
		END;
	END LOOP;
END $$$f$, CASE WHEN of_audit THEN 'audit' ELSE 'metrics' END,
			concat(CASE WHEN of_audit THEN 'node text, ' END, arguments), CASE WHEN NOT of_audit THEN format($f$IF (SELECT min(n) FROM unnest(%s) n) < 0 OR array_to_string(durations, '') LIKE '%%-%%' THEN RAISE invalid_parameter_value
			USING MESSAGE = 'a number of the metrics is below 0: metrics only grow';
	END IF;$f$, numbers) END, CASE WHEN of_audit THEN format($f$INSERT INTO rate_limit_audit (node, region, id, %s) SELECT $2, nullif($1, ''), nextval('rate_limit_audit_id'), %s FROM (SELECT %s) r$f$, names, values, elements)
			ELSE format($f$INSERT INTO rate_limit_metrics AS m (region, granularity, %s) SELECT $1, g.granularity, %s FROM (SELECT %s) r, unnest('{minute,hour,day}'::text[]) AS g(granularity)
			ORDER BY 2, r.user_id, r.key_id, r.prefix, r.limit_name, r.unit, r.endpoint ON CONFLICT (user_id, time, key_id, prefix, limit_name, unit, endpoint, region, granularity) DO UPDATE SET %s$f$, names, values, elements, additions) END,
			CASE WHEN of_audit THEN '{rate_limit_audit}' ELSE '{rate_limit_metrics_minute,rate_limit_metrics_hour}' END) FROM lists LOOP EXECUTE definition;
	END LOOP;
END $do$;
--;
CREATE OR REPLACE FUNCTION rate_limit_retain(what text, keep text, set_by text) RETURNS text
	LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
	kept CONSTANT interval := (SELECT r.keep FROM rate_limit_retention r WHERE r.what = $1 FOR UPDATE);
	most CONSTANT interval := '1000 years';
BEGIN
	IF (now() - least($2::interval, most) <= now() - least(kept, most)) IS NOT TRUE AND NOT has_column_privilege(rate_limit_caller(), 'rate_limit_retention'::regclass, 'keep', 'UPDATE') THEN
		RETURN format('%s is kept for %s: the role %s may not shorten that; an administrator can, with UPDATE rate_limit_retention SET keep = %L WHERE what = %L',
			$1, coalesce(kept::text, 'ever'), rate_limit_caller(), $2, $1);
	END IF;
	INSERT INTO rate_limit_retention AS r (what, keep, set_by, set_at) VALUES ($1, $2::interval, nullif($3, ''), now())
	ON CONFLICT (what) DO UPDATE SET keep = excluded.keep, set_by = excluded.set_by, set_at = excluded.set_at WHERE r.keep <> excluded.keep;
	RETURN NULL;
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
	IF $1 IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day') THEN
		RAISE EXCEPTION 'keep: %: must be 1 day or more, as in 90 days', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RAISE EXCEPTION 'what: %: must be audit, metrics_minute, metrics_hour or metrics_day', to_json($1) USING ERRCODE = 'invalid_parameter_value';
END $$;
--;
COMMENT ON FUNCTION rate_limit_begin_batch IS 'The first statement of a transaction that writes a batch. It fails with unique_violation if this batch or a later batch is already written, so a writer that got no answer can send the batch again. The transaction waits for a lock for at most 1 s. written and dropped are totals.';
--;
COMMENT ON FUNCTION rate_limit_record_audit IS 'Writes rows of rate_limit_audit, and creates the partitions that they need. Times are microseconds since 1970. An empty text and a number below 0 represent NULL.';
--;
COMMENT ON FUNCTION rate_limit_record_metrics IS 'Adds to the minutes, hours and days of rate_limit_metrics, and creates the partitions that they need. All rows must be of one minute, and no two rows may be of the same user, API key, limit and endpoint. Times are microseconds since 1970.';
--;
COMMENT ON FUNCTION rate_limit_retain IS 'Sets the retention of a part of the history (what) to an interval (keep). Returns NULL, or the reason for a refusal: only a role that may update rate_limit_retention can shorten a retention.';
--;
CREATE OR REPLACE FUNCTION rate_limit_cutoff(what text, now timestamptz) RETURNS timestamptz
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT CASE WHEN rate_limit_owns_history() THEN $2 ELSE least($2, pg_catalog.now()) END - least(r.keep, interval '1000 years')
	FROM rate_limit_retention r WHERE r.what = $1
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_holders(relation oid) RETURNS text
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT string_agg(DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction'), ', ') FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.relation = $1 AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_drop_expired(now timestamptz DEFAULT now())
	RETURNS TABLE (name text, held_by text) LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	expired record;
	busy jsonb := '{}';
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) THEN
		RETURN;
	END IF;
	FOR expired IN SELECT 'rate_limit_' || k.what AS parent, p.name, rate_limit_holders(p.id) AS held_by FROM unnest('{audit,metrics_minute,metrics_hour}'::text[]) AS k(what)
		CROSS JOIN LATERAL rate_limit_partitions('rate_limit_' || k.what) p
		WHERE p.ends <= rate_limit_cutoff(k.what, $1)
	LOOP
		name := expired.name;
		held_by := coalesce(expired.held_by, busy ->> expired.parent);
		IF held_by IS NULL THEN
			BEGIN
				EXECUTE format('DROP TABLE %s', expired.name);
			EXCEPTION WHEN lock_not_available THEN
				held_by := coalesce(rate_limit_holders(expired.parent::regclass), 'another session') || ' by way of ' || expired.parent;
				busy := busy || jsonb_build_object(expired.parent, held_by);
			WHEN dependent_objects_still_exist THEN
				held_by := SQLERRM;
			WHEN undefined_table THEN
				CONTINUE;
			END;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_upkeep(now timestamptz DEFAULT now(), pause interval DEFAULT '0') RETURNS TABLE (what text, name text, rows bigint) LANGUAGE plpgsql SECURITY DEFINER
	SET lock_timeout = '1s' AS $$
DECLARE
	today CONSTANT date := CASE WHEN rate_limit_owns_history() THEN $1 ELSE pg_catalog.now() END;
	parent text;
	column_name text;
	before timestamptz;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) OR EXISTS (SELECT FROM rate_limit_retention r WHERE r.upkeep_at > pg_catalog.now() - pause
			AND r.upkeep_at <= pg_catalog.now()) THEN
		what := 'busy';
		RETURN NEXT;
		RETURN;
	END IF;
	FOREACH parent IN ARRAY '{rate_limit_audit,rate_limit_metrics_minute,rate_limit_metrics_hour}'::text[]
	LOOP
		FOR ahead IN 0..7 LOOP
			BEGIN
				name := rate_limit_make_partition(today + ahead, parent);
			EXCEPTION WHEN lock_not_available THEN
				what := 'skipped';
				name := parent;
				RETURN NEXT;
				EXIT;
			END;
			IF name IS NOT NULL THEN
				what := 'made';
				RETURN NEXT;
			END IF;
		END LOOP;
	END LOOP;
	what := 'deleted';
	FOR name, column_name, before IN VALUES ('metrics_day', 'time', date_trunc('day', rate_limit_cutoff('metrics_day', $1))), ('writers', 'seen', least($1, pg_catalog.now()) - interval '30 days')
	LOOP
		EXECUTE format('DELETE FROM rate_limit_%1$s d WHERE d.ctid = ANY (ARRAY(SELECT o.ctid
			FROM rate_limit_%1$s o WHERE o.%2$s < $1 LIMIT 20000 FOR UPDATE SKIP LOCKED))', name, column_name)
			USING before;
		GET DIAGNOSTICS rows = ROW_COUNT;
		RETURN NEXT;
	END LOOP;
	UPDATE rate_limit_retention r SET upkeep_at = pg_catalog.now() FROM (SELECT f.what FROM rate_limit_retention f FOR UPDATE SKIP LOCKED) AS free WHERE r.what = free.what;
END $$;
--;
COMMENT ON FUNCTION rate_limit_cutoff IS 'The time before which a part of the history (what) is past its retention at a time (now). NULL: the part is kept for ever. For a role other than the owner of the tables, now is at most the current time.';
--;
COMMENT ON FUNCTION rate_limit_holders IS 'The other sessions that have a lock on a table, as text. NULL: none.';
--;
COMMENT ON FUNCTION rate_limit_drop_expired IS 'Drops the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics that are past their retention. A partition in use stays, and held_by names the sessions that use it. Writers wait for up to 100 ms. One of the proxies, or pg_cron, runs this function about once a minute.';
--;
COMMENT ON FUNCTION rate_limit_upkeep IS 'Creates the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics for today and the next 7 days. Deletes up to 20,000 rows of days of rate_limit_metrics past their retention, and old rows of rate_limit_writers. Waits for a lock for at most 1 s. Returns a row for each effect. what is made (a partition), deleted (rows), skipped (a table that another session has locked), or busy (another process runs the function, or ran it within the pause). For a role that does not own the tables, now is at most the current time. One of the proxies, or pg_cron, runs this about once a minute.';
--;
CREATE OR REPLACE FUNCTION rate_limit_key_name(key_id bigint, rule text DEFAULT NULL, key text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF NOT rate_limit_may_read('api_keys', 'rules') THEN
		RETURN NULL;
	END IF;
	IF $1 IS NULL THEN
		$1 := (SELECT d.part::bigint FROM rate_limit_rules r, rate_limit_counted(r.count_by, $3) AS d WHERE r.name = $2 AND d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$');
	END IF;
	RETURN (SELECT concat_ws(' ', k.name, 'of', k.user_id) FROM rate_limit_api_keys k WHERE k.id = $1);
END $$;
--;
COMMENT ON FUNCTION rate_limit_key_name IS 'The name and the user of an API key, as in laptop of ann. Without key_id, it is the API key of a counter, if the rule counts by API key. NULL: there is none, or the role may not read the policy.';
--;
CREATE OR REPLACE FUNCTION rate_limit_readable(amount numeric) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN regexp_replace(amount::text, '([.]\d\d\d*?)0+$', '\1');
--;
CREATE OR REPLACE VIEW rate_limit_audited WITH (security_invoker) AS SELECT a.time, a.outcome, a.shadow, a.outcome NOT IN ('admitted', 'overloaded', 'failed') AND NOT a.shadow AS refused, a.reason,
		a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.tier, a.address, a.host, a.method, a.path, a.node, a.region, a.status, rate_limit_decimal(a.cost, a.unit) AS cost, a.count, a.weight, a.count * a.weight AS requests,
		rate_limit_decimal(a.quota, a.unit) AS quota, rate_limit_decimal(a.remaining, a.unit) AS remaining, a.retry_after_ms / 1000.0::float8 AS retry_after, a.duration_us / 1000000.0::float8 AS duration,
		a.also, a.id, a.xmin, a.model, replace(a.reason, '_', ' ') || coalesce(' of the model ' || to_json(a.model), '') AS cause, a.unit FROM rate_limit_audit a;
--;
CREATE OR REPLACE FUNCTION rate_limit_top(since timestamptz, until timestamptz DEFAULT now(), by text DEFAULT 'sender', limit_prefix text DEFAULT '', max_rows bigint DEFAULT 500000)
RETURNS TABLE (prefix text, name text, user_id text, requests bigint, refused bigint, failed bigint,
	last timestamptz, percent_read numeric) LANGUAGE plpgsql SET jit = off SET work_mem = '64MB' AS $$
DECLARE
	plan json;
	part float8; -- the fraction of the pages that is read
BEGIN
	IF $3 IN ('sender', 'path') IS NOT TRUE THEN
		RAISE EXCEPTION 'by: %: must be sender or path', to_json($3) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM rate_limit_audit WHERE time >= %L AND time < %L', $1, $2) INTO plan;
	part := least(1, max_rows / greatest(1, (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8));
	RETURN QUERY SELECT c.prefix, c.name, c.user_id, round(sum(c.requests) / part)::bigint, round(coalesce(sum(c.requests) FILTER (WHERE c.refused), 0) / part)::bigint,
		round(coalesce(sum(c.count) FILTER (WHERE c.outcome IN ('overloaded', 'failed')), 0) / part)::bigint,
		max(c.time), nullif(round(100 * part::numeric, 2), 100)
	FROM (SELECT CASE $3 WHEN 'sender' THEN a.prefix END COLLATE "C" AS prefix, CASE $3 WHEN 'sender' THEN coalesce(a.key, host(a.address)) ELSE coalesce(a.host, '') || a.path END COLLATE "C" AS name,
			CASE $3 WHEN 'sender' THEN a.user_id END COLLATE "C" AS user_id, a.count * a.weight AS requests,
			a.outcome NOT IN ('admitted', 'overloaded', 'failed') AS refused, a.count, a.outcome, a.time
		FROM (SELECT * FROM rate_limit_audit WHERE part = 1 UNION ALL SELECT * FROM rate_limit_audit TABLESAMPLE SYSTEM (100 * part) REPEATABLE (0) WHERE part < 1) AS a
		WHERE a.time >= $1 AND a.time < $2 AND NOT a.shadow AND ($4 IN ('', a.prefix, a.prefix || '/' || a.limit_name) OR $4 = 'rule/' AND starts_with(a.prefix, $4))) AS c
	WHERE c.name IS NOT NULL OR $3 = 'sender' GROUP BY 1, 2, 3;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_refused(since timestamptz, until timestamptz DEFAULT now(), max_rows int DEFAULT 10) RETURNS TABLE (kind text, prefix text, name text, requests bigint)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY SELECT p.kind, p.prefix, p.name, p.requests FROM ( SELECT c.*, row_number() OVER (PARTITION BY c.kind ORDER BY c.requests DESC, c.name, c.prefix) AS place
		FROM (SELECT CASE 0 WHEN GROUPING(a.user_id) THEN 'users' WHEN GROUPING(a.key) THEN 'keys' WHEN GROUPING(a.address) THEN 'addresses' ELSE 'causes' END AS kind, a.prefix,
				coalesce(a.user_id, a.key, abbrev(a.address), a.by) AS name,
				round(sum(a.requests))::bigint AS requests
			FROM (SELECT d.*, coalesce(CASE WHEN d.reason = 'no_price' THEN d.cause END, nullif(concat_ws('/', d.prefix, d.limit_name), ''), d.cause) AS by FROM rate_limit_audited d) a
			WHERE a.time >= $1 AND a.time < $2 AND a.refused
			GROUP BY GROUPING SETS (a.user_id, (a.key, a.prefix), a.address, a.by)) AS c
		WHERE c.name IS NOT NULL) AS p
	WHERE p.place <= $3 ORDER BY p.kind, p.place;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ledger_sum(user_id text, "from" timestamptz, until timestamptz,
	prefix text, unit text) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('ledger') THEN
		RETURN (SELECT CASE $5 WHEN 'money' THEN rate_limit_money(sum(t.units)) ELSE sum(t.units) END FROM rate_limit_totals_of($1, $2, $3,
				regexp_replace(rate_limit_counted_prefix($4), '^(rule/.*):\d+$', '\1'), $5) t);
	END IF;
	RETURN NULL;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_users_below(user_id text) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN ARRAY[$1] || CASE WHEN rate_limit_may_read('users') THEN ARRAY( WITH RECURSIVE below AS (SELECT u.user_id FROM rate_limit_users u WHERE u.parent = $1
			UNION ALL SELECT u.user_id FROM rate_limit_users u JOIN below b ON u.parent = b.user_id)
		SELECT b.user_id FROM below b) END;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_metrics_of(users text[], "from" timestamptz, until timestamptz)
	RETURNS SETOF rate_limit_metrics LANGUAGE sql STABLE AS $$
	SELECT m.* FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = ANY ($1) AND m.time >= $2 AND m.time < date_trunc('day', $3, 'UTC')
	UNION ALL
	SELECT m.* FROM rate_limit_metrics m WHERE m.granularity = 'hour' AND m.user_id = ANY ($1) AND m.time >= $2 AND m.time < $3 AND (m.time >= date_trunc('day', $3, 'UTC')
			OR m.time < date_trunc('day', $2 + interval '1 day' - interval '1 us', 'UTC'))
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_usage(user_id text, "from" timestamptz, until timestamptz) RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, unit text, requests bigint,
	refused bigint, settled numeric, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT m.day, m.key_id, m.prefix, m.limit_name, nullif(m.unit, ''), rate_limit_add(sum(m.requests), 0), rate_limit_add(sum(m.requests - m.admitted - m.overloaded - m.failed), 0),
		CASE WHEN m.prefix IS NOT NULL THEN coalesce(CASE WHEN m.unit <> '' THEN rate_limit_ledger_sum( $1, $2, $3, concat_ws('/', m.prefix, nullif(m.limit_name, '')), m.unit) END,
			rate_limit_decimal(rate_limit_add(sum(m.settled), 0), m.unit)) END,
		max(m.last_request)
	FROM (SELECT *, (time AT TIME ZONE 'UTC')::date AS day FROM rate_limit_metrics_of(rate_limit_users_below($1), $2, $3)) m
	GROUP BY GROUPING SETS ((m.day), (m.key_id), (m.prefix, m.limit_name, m.unit), ()) ORDER BY 1, 2, 3, 4, 5
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_usage_between(user_id text, first date, last date) RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, unit text, requests bigint,
	refused bigint, settled numeric, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT * FROM rate_limit_usage($1, $2::timestamp AT TIME ZONE 'UTC', ($3 + 1)::timestamp AT TIME ZONE 'UTC')
$$;
--;
CREATE OR REPLACE VIEW rate_limit_minutes WITH (security_invoker) AS SELECT time, sum(admitted)::bigint AS admitted, sum(limited)::bigint AS limited, sum(blocked)::bigint AS blocked, sum(rejected)::bigint AS rejected,
		sum(overloaded)::bigint AS overloaded, sum(failed)::bigint AS failed, sum(shadow)::bigint AS shadow, sum(requests - admitted - overloaded - failed)::bigint AS refused, sum(overloaded + failed)::bigint AS undecided
	FROM rate_limit_metrics WHERE granularity = 'minute' GROUP BY time;
--;
CREATE OR REPLACE FUNCTION rate_limit_why(who text, at text DEFAULT 'now') RETURNS TABLE (summary text, "time" timestamptz, outcome text, reason text, prefix text, limit_name text,
	key text, user_id text, key_id bigint, address inet, method text, host text, path text, status integer, requests bigint, quota numeric, remaining numeric, retry_after float8, node text, model text, unit text)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
#variable_conflict use_column
DECLARE
	keys CONSTANT text[] := rate_limit_key_forms(ARRAY[$1, rate_limit_counter_key($1)]);
	number CONSTANT bigint := substring($1 FROM '^#([1-9][0-9]{0,17})$');
	today CONSTANT timestamp := now() AT TIME ZONE 'UTC';
	until timestamptz;
	ip inet;
	minute timestamptz;
BEGIN
	BEGIN
		ip := $1;
	EXCEPTION WHEN invalid_text_representation THEN
		NULL; -- not an address
	END;
	BEGIN
		until := CASE WHEN $2 ~ '^\d?\d:\d\d(:\d\d)?$' THEN (today::date + $2::time - CASE WHEN $2::time > today::time THEN interval '1 day' ELSE '0' END) AT TIME ZONE 'UTC' ELSE $2::timestamptz END;
		IF isfinite(until) IS NOT TRUE THEN
			RAISE data_exception;
		END IF;
		until := date_trunc('minute', until) + interval '1 minute';
	EXCEPTION WHEN data_exception THEN
		RAISE EXCEPTION 'at: %: must be a time such as 14:05, the latest one in UTC, or 2026-11-27 14:05Z', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	END;
	SELECT date_trunc('minute', max(f.time)) INTO minute FROM ( SELECT * FROM rate_limit_audit WHERE user_id = $1 UNION ALL SELECT * FROM rate_limit_audit WHERE key = ANY (keys)
		UNION ALL SELECT * FROM rate_limit_audit WHERE key_id = number
		UNION ALL SELECT * FROM rate_limit_audit WHERE address = ip) AS f
	WHERE f.time >= until - interval '1 day' AND f.time < until AND f.outcome <> 'admitted' AND NOT f.shadow;
	IF minute IS NULL THEN
		summary := concat(CASE WHEN until > now() THEN 'The audit log is up to 2 s behind: if the request was just now, ask again. ' END, format('No refusal of %s is recorded in the day before %s UTC.', $1,
			to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')));
		RETURN NEXT;
		RETURN;
	END IF;
	RETURN QUERY SELECT format('%s %s%s %s UTC, %s %s%s: %s.', concat($1, CASE WHEN $1 ~ '^(#|[1-9][|])?[0-9]+$' AND a.key_id IS NOT NULL THEN format(' (%s)', concat_ws(', ', 'API key ' || a.key_id,
					rate_limit_key_name(a.key_id))) END),
			CASE WHEN a.outcome NOT IN ('overloaded', 'failed') THEN 'was refused' WHEN a.status > 0 THEN 'was refused without a decision' ELSE 'passed without a decision' END,
			CASE WHEN a.total = 1 THEN ' at' ELSE ' ' || a.total || ' times within a minute, last at' END,
			to_char(a.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), a.method, a.host, a.path,
			CASE WHEN a.outcome = 'limited' THEN concat('the limit ', concat_ws('/', a.prefix, a.limit_name), ' of ' || CASE WHEN a.key <> a.user_id THEN a.key END,
				CASE WHEN a.reason = 'no_quota' THEN ' has a quota of 0'
				ELSE concat(' had ', rate_limit_readable(a.remaining), ' of ', concat_ws(' ', rate_limit_readable(a.quota), replace(a.unit, '_', ' ')), ' left', CASE WHEN a.retry_after > 0
					THEN format(', and would have let it pass %s later', CASE WHEN a.retry_after <= 120 THEN ceil(a.retry_after) || ' s' WHEN a.retry_after <= 7200 THEN ceil(a.retry_after / 60) || ' min'
						ELSE ceil(a.retry_after / 3600) || ' h' END) END) END)
			WHEN a.outcome = 'blocked' AND a.prefix <> '' THEN concat('the rule ', a.prefix, ' blocks')
			ELSE coalesce(a.cause, a.outcome) END),
		a.time, a.outcome, a.reason, a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.address, a.method,
		a.host, a.path, a.status, a.total, a.quota, a.remaining, a.retry_after, a.node,
		a.model, a.unit
	FROM (SELECT f.*, row_number() OVER (kind ORDER BY f.time DESC) AS place, round(sum(f.requests) OVER kind)::bigint AS total
		FROM rate_limit_audited f WHERE f.time >= minute AND f.time < minute + interval '1 minute' AND f.outcome <> 'admitted' AND NOT f.shadow
			AND (f.user_id = $1 OR f.key = ANY (keys) OR f.key_id = number OR f.address = ip)
		WINDOW kind AS (PARTITION BY f.outcome, f.reason, f.prefix, f.limit_name, f.method, f.host, f.path, f.status, f.model)) AS a
	WHERE a.place = 1 ORDER BY a.time DESC LIMIT 100;
END $$;
--;
COMMENT ON SEQUENCE rate_limit_audit_id IS 'The ids of the rows of rate_limit_audit.';
--;
COMMENT ON TABLE rate_limit_audit IS 'The audit log: a row for each recorded request, or for several equal refusals. A refusal that a shadow rule would have made has a row of its own.';
--;
COMMENT ON COLUMN rate_limit_audit.time IS 'The time of the decision, by the clock of the proxy.';
--;
COMMENT ON COLUMN rate_limit_audit.cost IS 'The cost of one request, in millionths for money. For a refused request, the cost that it would have had.';
--;
COMMENT ON COLUMN rate_limit_audit.count IS 'The number of equal refusals within the same second that this row represents. The other columns describe the first of them.';
--;
COMMENT ON COLUMN rate_limit_audit.quota IS 'The full quota. NULL: no limit decided.';
--;
COMMENT ON COLUMN rate_limit_audit.remaining IS 'The units of the quota left after the decision.';
--;
COMMENT ON COLUMN rate_limit_audit.key_id IS 'The id of the API key in rate_limit_api_keys. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_audit.retry_after_ms IS 'For a refusal, the time until the request would pass, in milliseconds. NULL: the request passed, it would never pass, or the time is unknown.';
--;
COMMENT ON COLUMN rate_limit_audit.duration_us IS 'The time that the decision took, in microseconds.';
--;
COMMENT ON COLUMN rate_limit_audit.weight IS 'The number of requests that each request of this row represents: above 1 if only a sample is recorded. count * weight is the estimated number of requests.';
--;
COMMENT ON COLUMN rate_limit_audit.status IS 'The HTTP status of a refusal. NULL: the request passed.';
--;
COMMENT ON COLUMN rate_limit_audit.shadow IS 'Whether a shadow rule would have had this outcome. The request has another row with its own outcome.';
--;
COMMENT ON COLUMN rate_limit_audit.outcome IS 'What the proxy did: see the columns of rate_limit_metrics.';
--;
COMMENT ON COLUMN rate_limit_audit.reason IS 'The reason for the outcome, if no limit decided: unknown_key, key_expired, key_revoked, no_key, ambiguous_path, upgrade, ambiguous_body, background, batch, binary_stream, slow_body, long_body, gone_body, many_bodies, no_price, banned, blocked, no_quota, timeout or unavailable.';
--;
COMMENT ON COLUMN rate_limit_audit.model IS 'The model that has no price, if the reason is no_price, up to 100 bytes of its name.';
--;
COMMENT ON COLUMN rate_limit_audit.prefix IS 'The prefix of the limit in a configuration, or rule/ and the name of the rule; empty if no limit applied. If several limits applied, it is the limit that refused, otherwise the limit with the least remaining.';
--;
COMMENT ON COLUMN rate_limit_audit.limit_name IS 'The name of the limit of the rule. NULL: a limit in a configuration.';
--;
COMMENT ON COLUMN rate_limit_audit.key IS 'The stored key of the counter, which is a digest if the key is a secret.';
--;
COMMENT ON COLUMN rate_limit_audit.user_id IS 'The user. NULL: an anonymous request.';
--;
COMMENT ON COLUMN rate_limit_audit.tier IS 'The tier of the user, with a policy.';
--;
COMMENT ON COLUMN rate_limit_audit.address IS 'The address of the client, or its network; see audit_address.';
--;
COMMENT ON COLUMN rate_limit_audit.host IS 'The host of the request.';
--;
COMMENT ON COLUMN rate_limit_audit.method IS 'The method of the request.';
--;
COMMENT ON COLUMN rate_limit_audit.path IS 'The path of the request without the query, up to 500 characters.';
--;
COMMENT ON COLUMN rate_limit_audit.node IS 'The name of the proxy.';
--;
COMMENT ON COLUMN rate_limit_audit.region IS 'The region of the proxy, if its configuration has one.';
--;
COMMENT ON COLUMN rate_limit_audit.also IS 'The other limits that the request matched, charged or not, as pairs of prefix and key. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_audit.id IS 'A unique number.';
--;
COMMENT ON COLUMN rate_limit_audit.unit IS 'The unit of cost, quota and remaining: tokens, input_tokens, output_tokens or money. NULL: requests, or the unit of a limit that settles.';
--;
COMMENT ON TABLE rate_limit_metrics IS 'Sums of requests by user, API key, deciding limit and endpoint, in a minute, an hour or a day, over all proxies of a region. Usage and invoices are computed from them.';
--;
COMMENT ON COLUMN rate_limit_metrics.granularity IS 'minute, hour or day: each request counts in all three.';
--;
COMMENT ON COLUMN rate_limit_metrics.time IS 'The start of the minute, hour or day, in UTC.';
--;
COMMENT ON COLUMN rate_limit_metrics.user_id IS 'The user; empty: anonymous requests; (other): users beyond the first 10,000 combinations of a proxy in a minute.';
--;
COMMENT ON COLUMN rate_limit_metrics.key_id IS 'The id of the API key; 0: none, or (other).';
--;
COMMENT ON COLUMN rate_limit_metrics.prefix IS 'As in rate_limit_audit.';
--;
COMMENT ON COLUMN rate_limit_metrics.limit_name IS 'The name of the limit of the rule; empty: a limit in a configuration, or none.';
--;
COMMENT ON COLUMN rate_limit_metrics.unit IS 'The unit of settled: tokens, input_tokens, output_tokens or money, in millionths; empty: requests, or the unit of a limit that settles.';
--;
COMMENT ON COLUMN rate_limit_metrics.endpoint IS 'The name of the route in the configuration, otherwise the paths of the matching rule or zone, but never the path of a request; (other): as for users.';
--;
COMMENT ON COLUMN rate_limit_metrics.region IS 'The region of the proxies, if their configuration has one.';
--;
COMMENT ON COLUMN rate_limit_metrics.requests IS 'All requests: the next six columns together. A request counts once, for the limit that refused it or has the least remaining.';
--;
COMMENT ON COLUMN rate_limit_metrics.admitted IS 'Requests that passed.';
--;
COMMENT ON COLUMN rate_limit_metrics.limited IS 'Requests that a limit refused.';
--;
COMMENT ON COLUMN rate_limit_metrics.blocked IS 'Requests that a ban or a block rule refused.';
--;
COMMENT ON COLUMN rate_limit_metrics.rejected IS 'Requests that were refused because of their API key, their path or their body.';
--;
COMMENT ON COLUMN rate_limit_metrics.overloaded IS 'Requests that were not decided in time while others were, or had a body when the proxy held too many. They pass only if their limits refuse nothing.';
--;
COMMENT ON COLUMN rate_limit_metrics.failed IS 'Other requests without a decision, which pass if on_error says so.';
--;
COMMENT ON COLUMN rate_limit_metrics.shadow IS 'Refusals that shadow rules would have made. Their requests count in the other columns, too.';
--;
COMMENT ON COLUMN rate_limit_metrics.settled IS 'Units that this limit charged for requests that passed, including requests counted under another limit. If the limit has settle, the actual cost, once their responses end.';
--;
COMMENT ON COLUMN rate_limit_metrics.from_memory IS 'Limited requests that a proxy refused from memory, without the database.';
--;
COMMENT ON COLUMN rate_limit_metrics.from_lease IS 'Admitted requests that a lease decided, without the database.';
--;
COMMENT ON COLUMN rate_limit_metrics.from_database IS 'Requests that the database decided, because neither the memory of the proxy nor a lease could.';
--;
COMMENT ON COLUMN rate_limit_metrics.last_request IS 'The time of the last request.';
--;
COMMENT ON COLUMN rate_limit_metrics.durations IS 'The numbers of decisions by duration, in buckets; see rate_limit_percentile.';
--;
COMMENT ON TABLE rate_limit_writers IS 'The processes that write the history, and the progress of each. A row that was not renewed for 30 days is deleted.';
--;
COMMENT ON COLUMN rate_limit_writers.writer IS 'A random name of the process.';
--;
COMMENT ON COLUMN rate_limit_writers.node IS 'The name of the proxy.';
--;
COMMENT ON COLUMN rate_limit_writers.region IS 'The region of the proxy, if its configuration has one.';
--;
COMMENT ON COLUMN rate_limit_writers.batch IS 'The number of the last written batch, so that a batch that is sent again after a failure is not written twice.';
--;
COMMENT ON COLUMN rate_limit_writers.written IS 'The number of decisions that the process has written to rate_limit_audit.';
--;
COMMENT ON COLUMN rate_limit_writers.dropped IS 'The number of decisions that the process could not write, because the database was slow or down for too long.';
--;
COMMENT ON COLUMN rate_limit_writers.seen IS 'The time of the last batch.';
--;
COMMENT ON TABLE rate_limit_retention IS 'The retention of each part of the history. Upkeep deletes older rows. A proxy with a retention in its configuration writes it when it starts.';
--;
COMMENT ON COLUMN rate_limit_retention.what IS 'The part of the history: audit, metrics_minute, metrics_hour or metrics_day.';
--;
COMMENT ON COLUMN rate_limit_retention.keep IS 'The retention. A part without a row is kept for ever.';
--;
COMMENT ON COLUMN rate_limit_retention.set_by IS 'The proxy or the role that set the retention. NULL: it is the default.';
--;
COMMENT ON COLUMN rate_limit_retention.set_at IS 'When the retention was set.';
--;
COMMENT ON COLUMN rate_limit_retention.upkeep_at IS 'When upkeep last ran.';
--;
COMMENT ON FUNCTION rate_limit_readable IS 'An amount for people: at least two of its decimals.';
--;
COMMENT ON VIEW rate_limit_audited IS 'The audit log with computed columns. Conditions on time, user_id and outcome are as fast as on rate_limit_audit.';
--;
COMMENT ON COLUMN rate_limit_audited.refused IS 'Whether a decision refused the requests, and not in the shadow: false for overloaded and failed.';
--;
COMMENT ON COLUMN rate_limit_audited.requests IS 'The number of requests that the row represents, estimated if only a sample is recorded.';
--;
COMMENT ON COLUMN rate_limit_audited.retry_after IS 'For a refusal, the time until the request would pass, in seconds. NULL: the request passed, it would never pass, or the time is unknown.';
--;
COMMENT ON COLUMN rate_limit_audited.duration IS 'The time that the decision took, in seconds.';
--;
COMMENT ON COLUMN rate_limit_audited.cause IS 'The reason in words, with the model that has no price.';
--;
COMMENT ON COLUMN rate_limit_audited.xmin IS 'The transaction that wrote the row: the last 32 bits of its number.';
--;
COMMENT ON FUNCTION rate_limit_top IS 'The requests of each sender in a period, by the audit log: all, the refused ones, and overloaded and failed ones together. A sampled row counts as all requests that it represents. A sender is a user with the key of a limit, or with an address if there is no key. With by => path, the host and the path replace the sender. limit_prefix selects limits, as audit --prefix does. If the period has more than max_rows rows, about as many are read (percent_read of all), and the numbers are estimates. max_rows => NULL reads all, at 1.3 seconds for each million rows.';
--;
COMMENT ON FUNCTION rate_limit_refused IS 'The users, keys of limits and addresses with the most refused requests in a period, and the most frequent causes, by the audit log. A cause is a limit, a rule or another reason. Each kind has at most max_rows rows.';
--;
COMMENT ON FUNCTION rate_limit_ledger_sum IS 'What the requests of a user and of all below it have cost on a limit, rule/RULE/LIMIT, in a unit of tokens or money, from a time until another, by the ledger: each request once, whoever has the limit. NULL: it has none, or is on another server.';
--;
COMMENT ON FUNCTION rate_limit_users_below IS 'A user, and all who are now below it.';
--;
COMMENT ON FUNCTION rate_limit_metrics_of IS 'The metrics of users from a time until another: the whole days in UTC, and the hours that begin in the parts of days, as long as hours are kept.';
--;
COMMENT ON FUNCTION rate_limit_usage IS 'The usage of a user and of all who are now below it, from a time until another, added up in four ways: by day in UTC, by API key (key_id 0: requests without an API key), by limit, and in total. In each row, the columns of the other ways are NULL. Only the rows by limit have settled, which for limits of tokens or money is from the ledger. The others are from rate_limit_metrics_of.';
--;
COMMENT ON FUNCTION rate_limit_usage_between IS 'The rows of rate_limit_usage from first to last, which are days in UTC.';
--;
COMMENT ON VIEW rate_limit_minutes IS 'The requests of all proxies in each minute with requests, by outcome.';
--;
COMMENT ON COLUMN rate_limit_minutes.refused IS 'Requests that a decision refused.';
--;
COMMENT ON COLUMN rate_limit_minutes.undecided IS 'Requests without a decision: overloaded or failed.';
--;
COMMENT ON FUNCTION rate_limit_why IS 'Says why a sender was refused: the latest minute, in the day up to the minute of at, with a request that was refused or had no decision. Each row is a sentence about one kind of request and cause, the latest first. requests counts all of the kind, and the other columns describe the latest one. who is a user, an address, the key of a counter, or # and the id of an API key. at is a time, or a time of day, such as 14:05, for the latest one in UTC.';
--;
CREATE OR REPLACE FUNCTION rate_limit_set_level() RETURNS trigger LANGUAGE plpgsql
	SET enable_seqscan = off AS $$
BEGIN
	SELECT u.level INTO NEW.parent_level FROM rate_limit_users u WHERE u.user_id = NEW.parent;
	IF NEW.parent_level IS NULL AND NEW.parent IS NOT NULL THEN
		RAISE foreign_key_violation USING MESSAGE = format('parent: %s: must be in rate_limit_users', to_json(NEW.parent));
	END IF;
	NEW.level := coalesce(NEW.parent_level, 0) + 1;
	RETURN NEW;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_set_level BEFORE INSERT ON rate_limit_users FOR EACH ROW WHEN (NEW.parent_level IS NULL OR current_setting('search_path') NOT IN ('', '""')) EXECUTE FUNCTION rate_limit_set_level();
--;
CREATE OR REPLACE TRIGGER rate_limit_change_level BEFORE UPDATE OF parent, parent_level ON rate_limit_users FOR EACH ROW EXECUTE FUNCTION rate_limit_set_level();
--;
DO $do$ BEGIN EXECUTE replace($sql$ CREATE OR REPLACE FUNCTION rate_limit_lineage(user_id text)
RETURNS TABLE (user_id text, counts text, place int) LANGUAGE sql STABLE ROWS 2 AS $$
	WITH RECURSIVE up AS ( SELECT $1 AS user_id, coalesce(u.counted_as, $1) AS counts, u.parent, 0 AS place FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_users u ON u.user_id = $1
		UNION ALL SELECT p.user_id, coalesce(p.counted_as, p.user_id), p.parent, up.place + 1
		FROM up JOIN {schema}.rate_limit_users p ON p.user_id = up.parent WHERE up.place < 3
	) SELECT up.user_id, up.counts, up.place FROM up
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
--;
COMMENT ON FUNCTION rate_limit_set_level IS 'Sets the level of a user, and of its parent.';
--;
COMMENT ON FUNCTION rate_limit_lineage IS 'A user, the users above it, and the names by which they count. place is 0 for the user itself.';
--;
CREATE OR REPLACE FUNCTION rate_limit_model(model text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN lower(btrim(model, E' \t\n\x0B\f\r') COLLATE "C");
--;
CREATE OR REPLACE FUNCTION rate_limit_set_model() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.model := rate_limit_model(NEW.model);
	RETURN NEW;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_set_model BEFORE INSERT OR UPDATE OF model ON rate_limit_prices FOR EACH ROW EXECUTE FUNCTION rate_limit_set_model();
--;
CREATE OR REPLACE FUNCTION rate_limit_rates(price rate_limit_prices) RETURNS jsonb
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT jsonb_object_agg(name, rate) FROM ( SELECT name || step, rate::text FROM (VALUES ('input', $1.input, NULL), ('cache_read', $1.cache_read, NULL), ('cache_write', $1.cache_write, NULL),
			('output', $1.output, NULL), ('input', $1.above_input, $1.above),
			('cache_read', $1.above_cache_read, $1.above), ('cache_write', $1.above_cache_write, $1.above),
			('output', $1.above_output, $1.above)) AS c(name, rate, above),
			coalesce('@' || above, '') AS step WHERE rate IS NOT NULL
		UNION ALL SELECT split_part(e, '=', 1), split_part(e, '=', 2) FROM unnest($1.parts) e
		UNION ALL SELECT split_part(e, '=', 1) || CASE WHEN e LIKE '%.%=%' THEN '' ELSE '.' END, split_part(e, '=', 2) FROM unnest($1.tiers) e) AS r(name, rate)
$$;
--;
COMMENT ON TABLE rate_limit_prices IS 'The prices of language models, for limits in money. Each is for a million tokens, in the currency of your choice.';
--;
COMMENT ON COLUMN rate_limit_prices.model IS 'The model as requests name it, without regard to the case of ASCII letters and to blanks at its ends. A name that ends in * is a pattern of the names that begin with the rest. A name goes before patterns, and a longer pattern before a shorter one.';
--;
COMMENT ON COLUMN rate_limit_prices.valid IS 'When the price holds. If several of a model hold, the one that became valid last does.';
--;
COMMENT ON COLUMN rate_limit_prices.input IS 'The price of input.';
--;
COMMENT ON COLUMN rate_limit_prices.cache_read IS 'The price of input from a cache. NULL: the price of input.';
--;
COMMENT ON COLUMN rate_limit_prices.cache_write IS 'The price of input that is written to a cache. NULL: the price of input.';
--;
COMMENT ON COLUMN rate_limit_prices.output IS 'The price of output.';
--;
COMMENT ON COLUMN rate_limit_prices.above IS 'A number of tokens of input, from a cache or not. A request with more of them has the following prices for all its tokens. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_prices.above_input IS 'As input, above that number.';
--;
COMMENT ON COLUMN rate_limit_prices.above_cache_read IS 'As cache_read, above that number.';
--;
COMMENT ON COLUMN rate_limit_prices.above_cache_write IS 'As cache_write, above that number.';
--;
COMMENT ON COLUMN rate_limit_prices.above_output IS 'As output, above that number.';
--;
COMMENT ON COLUMN rate_limit_prices.max_output IS 'The largest output of the model. A request holds at most this, whatever it names. NULL: unknown.';
--;
COMMENT ON COLUMN rate_limit_prices.parts IS 'Prices of further parts of an answer, as PART=PRICE: cache_read, cache_write, cache_write_1h, audio_input, audio_cache_read, audio_output, image_input, image_output; and search and request, which are for one. PART@N=PRICE, also of input and output, holds for all tokens if all input is more than N tokens. The last N that is exceeded does. What has no price costs what its neighbor does: cache_write_1h as cache_write; audio_cache_read as audio_input, or as cache_read if sound has no price; caches, audio_input and image_input as input; audio_output and image_output as output; search and request nothing. A neighbor in the same step goes before a price of a smaller one.';
--;
COMMENT ON COLUMN rate_limit_prices.tiers IS 'Prices of tiers of service, which the response names: TIER=FACTOR of the prices of tokens, and TIER.PART=PRICE or TIER.PART@N=PRICE in its place, also for neighbors of that part. Any other tier has the prices without one. If the response names no tier, the dearer of standard and the one of the request holds.';
--;
COMMENT ON COLUMN rate_limit_prices.comment IS 'A note. Proxies ignore it.';
--;
COMMENT ON COLUMN rate_limit_prices.source IS 'The list that prices import had the row from. NULL: made by hand.';
--;
COMMENT ON COLUMN rate_limit_prices.created_at IS 'When the row was created.';
--;
COMMENT ON COLUMN rate_limit_prices.updated_at IS 'When the row was last changed.';
--;
COMMENT ON FUNCTION rate_limit_model IS 'The name of a model, as prices have it.';
--;
COMMENT ON FUNCTION rate_limit_set_model IS 'Sets the name of a model in the form that prices have.';
--;
COMMENT ON FUNCTION rate_limit_rates IS 'The prices of a row by PART, PART@N, TIER.PART and TIER.PART@N, and the factor of a tier by TIER. with its period.';
--;
CREATE OR REPLACE FUNCTION rate_limit_is_money(amount text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN amount ~ '^[0-9]{1,10}([.][0-9]{1,6}0*)?$' THEN amount::numeric <= 9007199254.740992 ELSE false END;
--;
CREATE OR REPLACE FUNCTION rate_limit_units(amount text, unit text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
	AS $$
BEGIN
	IF unit = 'money' AND rate_limit_is_money(amount) THEN
		RETURN amount::numeric * 1000000;
	ELSIF amount IS NOT NULL AND unit = 'money' OR amount !~ '^[0-9]{1,18}$' THEN
		RAISE invalid_parameter_value USING MESSAGE = format('amount: %s: must be %s', to_json(amount), CASE unit WHEN 'money' THEN '0 to 9007199254.740992 with at most 6 decimals'
				ELSE 'a whole number' END);
	END IF;
	RETURN amount;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_amount(fields jsonb, is_money boolean, inward boolean) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN CASE WHEN is_money IS NOT TRUE OR coalesce(fields ->> 'events', '') !~ '^[0-9]+([.][0-9]{1,6}0*)?$' THEN fields ELSE fields || jsonb_build_object('events', CASE WHEN inward THEN trim_scale((fields ->> 'events')::numeric * 1000000)
		ELSE trim_scale(rate_limit_decimal((fields ->> 'events')::bigint, 'money')) END) END;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_amounts(fields jsonb, money text[], inward boolean DEFAULT false) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN rate_limit_policy_amount(fields, (fields ->> 'rule' || '/'
	|| coalesce(fields ->> 'limit_name', fields ->> 'name')) = ANY (money), inward);
--;
CREATE OR REPLACE FUNCTION rate_limit_span(span interval) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN date_trunc('month', span) <> '0' THEN extract(year FROM span) * 12 + extract(month FROM span) || ' months'
	ELSE (SELECT trunc(extract(epoch FROM span) / u.seconds) || u.name FROM (VALUES (3600, 'h'), (60, 'm'), (1, 's'), (0.001, 'ms'), (0.000001, 'us')) AS u(seconds, name)
		WHERE extract(epoch FROM span) % u.seconds = 0 ORDER BY u.seconds DESC LIMIT 1) END;
--;
COMMENT ON FUNCTION rate_limit_is_money IS 'Whether a text is an amount of money that a limit can have.';
--;
COMMENT ON FUNCTION rate_limit_units IS 'What an amount of a unit counts: an amount of money in millionths, and any other one unchanged.';
--;
COMMENT ON FUNCTION rate_limit_policy_amount IS 'A row of a document with its amount of money in millionths (inward), or as a decimal number.';
--;
COMMENT ON FUNCTION rate_limit_policy_amounts IS 'The same for a row of a limit or an override. money has the limits in money, as RULE/LIMIT.';
--;
COMMENT ON FUNCTION rate_limit_span IS 'An interval as a multiple of the largest unit that divides it, such as 90s or 24h.';
--;
CREATE OR REPLACE FUNCTION rate_limit_known_zone(zone text) RETURNS text LANGUAGE plpgsql IMMUTABLE
	SET TimeZone = 'UTC' AS $$
DECLARE
	links CONSTANT text := ' Africa/Asmera=Africa/Asmara Africa/Timbuktu=Africa/Abidjan America/Argentina/ComodRivadavia=America/Argentina/Catamarca America/Atka=America/Adak America/Buenos_Aires=America/Argentina/Buenos_Aires America/Catamarca=America/Argentina/Catamarca America/Coral_Harbour=America/Panama America/Cordoba=America/Argentina/Cordoba America/Ensenada=America/Tijuana America/Fort_Wayne=America/Indiana/Indianapolis America/Godthab=America/Nuuk America/Indianapolis=America/Indiana/Indianapolis America/Jujuy=America/Argentina/Jujuy America/Knox_IN=America/Indiana/Knox America/Louisville=America/Kentucky/Louisville America/Mendoza=America/Argentina/Mendoza America/Montreal=America/Toronto America/Nipigon=America/Toronto America/Pangnirtung=America/Iqaluit America/Porto_Acre=America/Rio_Branco America/Rainy_River=America/Winnipeg America/Rosario=America/Argentina/Cordoba America/Santa_Isabel=America/Tijuana America/Shiprock=America/Denver America/Thunder_Bay=America/Toronto America/Virgin=America/St_Thomas America/Yellowknife=America/Edmonton Antarctica/South_Pole=Pacific/Auckland Asia/Ashkhabad=Asia/Ashgabat Asia/Calcutta=Asia/Kolkata Asia/Choibalsan=Asia/Ulaanbaatar Asia/Chongqing=Asia/Shanghai Asia/Chungking=Asia/Shanghai Asia/Dacca=Asia/Dhaka Asia/Harbin=Asia/Shanghai Asia/Istanbul=Europe/Istanbul Asia/Kashgar=Asia/Urumqi Asia/Katmandu=Asia/Kathmandu Asia/Macao=Asia/Macau Asia/Rangoon=Asia/Yangon Asia/Saigon=Asia/Ho_Chi_Minh Asia/Tel_Aviv=Asia/Jerusalem Asia/Thimbu=Asia/Thimphu Asia/Ujung_Pandang=Asia/Makassar Asia/Ulan_Bator=Asia/Ulaanbaatar Atlantic/Faeroe=Atlantic/Faroe Atlantic/Jan_Mayen=Europe/Berlin Australia/ACT=Australia/Sydney Australia/Canberra=Australia/Sydney Australia/Currie=Australia/Hobart Australia/LHI=Australia/Lord_Howe Australia/NSW=Australia/Sydney Australia/North=Australia/Darwin Australia/Queensland=Australia/Brisbane Australia/South=Australia/Adelaide Australia/Tasmania=Australia/Hobart Australia/Victoria=Australia/Melbourne Australia/West=Australia/Perth Australia/Yancowinna=Australia/Broken_Hill Brazil/Acre=America/Rio_Branco Brazil/DeNoronha=America/Noronha Brazil/East=America/Sao_Paulo Brazil/West=America/Manaus CET=Europe/Brussels CST6CDT=America/Chicago Canada/Atlantic=America/Halifax Canada/Central=America/Winnipeg Canada/Eastern=America/Toronto Canada/Mountain=America/Edmonton Canada/Newfoundland=America/St_Johns Canada/Pacific=America/Vancouver Canada/Saskatchewan=America/Regina Canada/Yukon=America/Whitehorse Chile/Continental=America/Santiago Chile/EasterIsland=Pacific/Easter Cuba=America/Havana EET=Europe/Athens EST=America/Panama EST5EDT=America/New_York Egypt=Africa/Cairo Eire=Europe/Dublin Etc/GMT+0=Etc/GMT Etc/GMT-0=Etc/GMT Etc/GMT0=Etc/GMT Etc/Greenwich=Etc/GMT Etc/UCT=UTC Etc/UTC=UTC Etc/Universal=UTC Etc/Zulu=UTC Europe/Belfast=Europe/London Europe/Kiev=Europe/Kyiv Europe/Nicosia=Asia/Nicosia Europe/Tiraspol=Europe/Chisinau Europe/Uzhgorod=Europe/Kyiv Europe/Zaporozhye=Europe/Kyiv GB=Europe/London GB-Eire=Europe/London GMT=Etc/GMT GMT+0=Etc/GMT GMT-0=Etc/GMT GMT0=Etc/GMT Greenwich=Etc/GMT HST=Pacific/Honolulu Hongkong=Asia/Hong_Kong Iceland=Atlantic/Reykjavik Iran=Asia/Tehran Israel=Asia/Jerusalem Jamaica=America/Jamaica Japan=Asia/Tokyo Kwajalein=Pacific/Kwajalein Libya=Africa/Tripoli MET=Europe/Brussels MST=America/Phoenix MST7MDT=America/Denver Mexico/BajaNorte=America/Tijuana Mexico/BajaSur=America/Mazatlan Mexico/General=America/Mexico_City NZ=Pacific/Auckland NZ-CHAT=Pacific/Chatham Navajo=America/Denver PRC=Asia/Shanghai PST8PDT=America/Los_Angeles Pacific/Enderbury=Pacific/Kanton Pacific/Johnston=Pacific/Honolulu Pacific/Ponape=Pacific/Pohnpei Pacific/Samoa=Pacific/Pago_Pago Pacific/Truk=Pacific/Chuuk Pacific/Yap=Pacific/Port_Moresby Poland=Europe/Warsaw Portugal=Europe/Lisbon ROC=Asia/Taipei ROK=Asia/Seoul Singapore=Asia/Singapore Turkey=Europe/Istanbul UCT=UTC US/Alaska=America/Anchorage US/Aleutian=America/Adak US/Arizona=America/Phoenix US/Central=America/Chicago US/East-Indiana=America/Indiana/Indianapolis US/Eastern=America/New_York US/Hawaii=Pacific/Honolulu US/Indiana-Starke=America/Indiana/Knox US/Michigan=America/Detroit US/Mountain=America/Denver US/Pacific=America/Los_Angeles US/Samoa=Pacific/Pago_Pago Universal=UTC W-SU=Europe/Moscow WET=Europe/Lisbon Zulu=UTC ';
	target CONSTANT text := split_part(split_part(links, ' ' || zone || '=', 2), ' ', 1);
	name CONSTANT text := CASE target WHEN '' THEN zone ELSE target END;
BEGIN
	IF name ~ '^(UTC|Etc/GMT|(Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific)/[A-Za-z_/-]+)$' THEN -- A name with a digit can be a zone of POSIX.
		PERFORM set_config('TimeZone', name, true);
		RETURN current_setting('TimeZone');
	END IF;
	RETURN NULL;
EXCEPTION WHEN invalid_parameter_value THEN
	RETURN NULL;
END $$;
--;
COMMENT ON FUNCTION rate_limit_known_zone IS 'The name of a time zone for columns time_zone: UTC, or the name of a place as the server spells it, also for a link such as US/Eastern. NULL: the server does not know the zone, or it is no place.';
--;
CREATE OR REPLACE FUNCTION rate_limit_check_zone() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	known CONSTANT text := rate_limit_known_zone(NEW.time_zone);
BEGIN
	IF TG_OP = 'UPDATE' AND NEW.time_zone = OLD.time_zone THEN
		RETURN NEW; -- It may be from a dump.
	ELSIF known IS NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = format('time_zone: %s: must be UTC or a place of the IANA time zones, such as Europe/Berlin, that the server knows', to_json(NEW.time_zone));
	END IF;
	NEW.time_zone := known;
	RETURN NEW;
END $$;
--;
DO $$
DECLARE
	zoned text;
BEGIN
	FOREACH zoned IN ARRAY '{rate_limit_users,rate_limit_rule_limits}'::text[] LOOP
		EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_check_zone BEFORE INSERT OR UPDATE OF time_zone ON %I FOR EACH ROW WHEN (NEW.time_zone <> ''UTC'' AND current_setting(''search_path'') '
			'NOT IN (%L, %L)) EXECUTE FUNCTION rate_limit_check_zone()', zoned, '', '""');
	END LOOP;
END $$;
--;
COMMENT ON FUNCTION rate_limit_check_zone IS 'Replaces the links of time zones, and refuses zones that the server does not know.';
--;
COMMENT ON TABLE rate_limit_changes IS 'The changes of the policy in the last 30 days. Triggers write them, and proxies poll them.';
--;
COMMENT ON COLUMN rate_limit_changes.seq IS 'The order in which the rows were written. A row may become visible later than rows of other transactions with higher numbers.';
--;
COMMENT ON COLUMN rate_limit_changes.xid IS 'The transaction. Proxies use it to find the changes that became visible since their last poll.';
--;
COMMENT ON COLUMN rate_limit_changes.kind IS 'The kind of the changed row: tier, user, key, rule, limit, override, ban or price.';
--;
COMMENT ON COLUMN rate_limit_changes.ref IS 'The changed row: the name of a tier or rule, rule/limit, the user, or the hexadecimal digest of a key. For an override or a ban, its target: tier/..., user/..., key/<digest> or network/.... NULL: all rows, because one statement changed more than 1,000 rows or emptied the table.';
--;
COMMENT ON COLUMN rate_limit_changes.at IS 'When the transaction started.';
--;
COMMENT ON COLUMN rate_limit_changes.by IS 'The role that made the change, and in parentheses the person in the setting rate_limit.person, if any.';
--;
COMMENT ON COLUMN rate_limit_changes.before IS 'The row before the change. NULL: it is new.';
--;
COMMENT ON COLUMN rate_limit_changes.after IS 'The row after the change. NULL: it was deleted.';
--;
CREATE OR REPLACE FUNCTION rate_limit_check_overrides() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	faults CONSTANT text := (SELECT string_agg(format('WHEN NOT (%s) THEN %L', pg_get_expr(c.conbin, c.conrelid), c.conname), ' ') FROM pg_constraint c
		JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attname IN ('events', 'burst')
		WHERE c.conrelid = 'rate_limit_rule_limits'::regclass AND c.contype = 'c' AND a.attnum = ANY (c.conkey) AND cardinality(c.conkey) > 1);
	wrong record;
BEGIN
	EXECUTE format('WITH checked AS MATERIALIZED (SELECT o.id, f.fault FROM rate_limit_rule_limits l
			JOIN rate_limit_overrides o ON (o.rule, o.limit_name) = (l.rule, l.name)
			CROSS JOIN LATERAL (SELECT CASE %s END AS fault FROM jsonb_populate_record(l,
				jsonb_build_object(''events'', o.events, ''burst'', coalesce(o.burst, l.burst)))) AS f
			WHERE %s FOR SHARE OF l)
		SELECT * FROM checked WHERE fault IS NOT NULL ORDER BY id LIMIT 1', faults, CASE TG_TABLE_NAME WHEN 'rate_limit_overrides' THEN 'o.id IN (SELECT id FROM changed_rows)'
			ELSE '(l.rule, l.name) IN (SELECT rule, name FROM changed_rows)' END) INTO wrong;
	IF wrong.id IS NOT NULL THEN
		RAISE EXCEPTION 'the override % violates check constraint "%"', wrong.id, wrong.fault USING ERRCODE = 'check_violation', CONSTRAINT = wrong.fault;
	END IF;
	IF TG_TABLE_NAME = 'rate_limit_overrides' THEN
		FOR wrong IN SELECT * FROM (SELECT o.rule, o.limit_name, coalesce(o.user_id, 'the tier ' || o.tier, 'the key ' || o.key_id) AS target, CASE WHEN o.events = 0 AND l.on_exceed = 'refuse'
				THEN '0: refuses every request'
				WHEN NOT r.tiers && (SELECT array_agg(t) || o.tier FROM rate_limit_users u LEFT JOIN rate_limit_api_keys k USING (user_id), unnest(ARRAY[u.tier, k.tier,
						CASE WHEN isfinite(u.tier_until) THEN 'anonymous' END]) AS t
					WHERE u.user_id = coalesce(o.user_id, (SELECT a.user_id FROM rate_limit_api_keys a WHERE a.id = o.key_id)))
				THEN 'has no effect: the rule is for the tiers ' || array_to_string(r.tiers, ', ')
				END AS fault
			FROM changed_rows o JOIN rate_limit_rules r ON r.name = o.rule JOIN rate_limit_rule_limits l ON (l.rule, l.name) = (o.rule, o.limit_name)) AS w
			WHERE w.fault IS NOT NULL LIMIT 10
		LOOP
			RAISE WARNING '%/% for %: %', wrong.rule, wrong.limit_name, wrong.target, wrong.fault USING ERRCODE = 'RL003';
		END LOOP;
	END IF;
	RETURN NULL;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER INSERT ON rate_limit_overrides REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
--;
CREATE OR REPLACE TRIGGER rate_limit_still_suits AFTER UPDATE ON rate_limit_overrides REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
--;
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER UPDATE ON rate_limit_rule_limits REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
--;
CREATE OR REPLACE FUNCTION rate_limit_check_limit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	old jsonb := to_jsonb(OLD);
BEGIN
	IF TG_OP = 'INSERT' THEN
		old := (SELECT c.before FROM rate_limit_changes c WHERE c.kind = 'limit' AND c.ref = concat(NEW.rule, '/', NEW.name) ORDER BY c.seq DESC LIMIT 1);
		NEW.counted_as := coalesce(NEW.counted_as, old ->> 'counted_as');
	ELSIF OLD.unit <> NEW.unit AND EXISTS (SELECT FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = (OLD.rule, OLD.name) AND o.events IS NOT NULL) THEN
		RAISE check_violation USING MESSAGE = format( 'unit: %s: must stay %s while overrides have amounts of it', to_json(NEW.unit), OLD.unit);
	END IF;
	IF old ->> 'unit' <> NEW.unit THEN
		NEW.counted_as := concat(NEW.name, ':', coalesce(substring(old ->> 'counted_as' FROM ':(\d+)$'), '0')::int + 1);
	END IF;
	IF NEW.events = 0 AND NEW.on_exceed = 'refuse' AND OLD.events IS DISTINCT FROM 0 THEN
		RAISE WARNING '%/%: 0: refuses every request', NEW.rule, NEW.name USING ERRCODE = 'RL003';
	END IF;
	RETURN NEW;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_check_limit BEFORE INSERT OR UPDATE OF unit, events ON rate_limit_rule_limits FOR EACH ROW EXECUTE FUNCTION rate_limit_check_limit();
--;
COMMENT ON FUNCTION rate_limit_check_overrides IS 'Refuses overrides with amounts that their limits cannot have, and changes of limits that make existing overrides invalid. Warns of overrides of 0, and of those without an effect.';
--;
COMMENT ON FUNCTION rate_limit_check_limit IS 'Refuses to change the unit of a limit with overrides, gives a limit with another unit other counters, and warns of an amount of 0.';
--;
CREATE OR REPLACE FUNCTION rate_limit_complete(rule text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
	fault text;
BEGIN
	SELECT action, settle INTO r FROM rate_limit_rules WHERE name = $1 AND mode <> 'off' FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	PERFORM FROM rate_limit_rule_limits l WHERE l.rule = $1 AND current_setting('transaction_isolation') <> 'read committed' FOR KEY SHARE;
	SELECT CASE WHEN r.action = 'limit' AND count(*) = 0 THEN 'limits: missing: a rule with the action limit must have one, such as per_hour' WHEN r.action <> 'limit' AND count(*) > 0
			THEN format('action: %L: must be limit, because the rule has limits: delete these limits, or make another rule', r.action)
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.algorithm <> 'in_flight') = 0 THEN format('settle: %s: must be left out with in_flight: a slot ends with its request', to_json(r.settle))
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.unit <> 'requests') > 0 THEN format('settle: %s: must be left out with unit %s: the response reports the cost',
				to_json(r.settle), min(l.unit) FILTER (WHERE l.unit <> 'requests')) END
		INTO fault FROM rate_limit_rule_limits l WHERE l.rule = $1;
	IF fault IS NOT NULL THEN
		RAISE check_violation USING MESSAGE = fault, DETAIL = format('The rule is %L.', $1);
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_check_complete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	PERFORM rate_limit_complete(coalesce(r ->> 'rule', r ->> 'name')) FROM unnest(ARRAY[to_jsonb(OLD), to_jsonb(NEW)]) r;
	RETURN NULL;
END $$;
--;
DO $$
DECLARE
	checked record;
BEGIN
	FOR checked IN SELECT * FROM (VALUES ('rate_limit_rules', 'INSERT OR UPDATE OF name, action, mode, settle'), ('rate_limit_rule_limits', 'INSERT OR DELETE OR UPDATE OF rule, unit, '
		'algorithm')) AS t(name, events)
	LOOP
		IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = checked.name::regclass AND tgname = 'rate_limit_complete') THEN
			EXECUTE format('CREATE CONSTRAINT TRIGGER rate_limit_complete AFTER %s ON %I DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rate_limit_check_complete()', checked.events, checked.name);
		END IF;
	END LOOP;
END $$;
--;
COMMENT ON FUNCTION rate_limit_complete IS 'Checks a rule that is not off. It fails if a rule with the action limit has no limit, if another rule has one, or if a rule with settle has a limit of tokens or money, or only limits of requests in flight.';
--;
COMMENT ON FUNCTION rate_limit_check_complete IS 'Refuses rules with an action that does not suit their limits, at the end of the transaction.';
--;
CREATE OR REPLACE FUNCTION rate_limit_rename_references() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_users' THEN
		DELETE FROM rate_limit_bans b USING rate_limit_bans o WHERE b.user_id IN (OLD.user_id, NEW.user_id) AND o.user_id IN (OLD.user_id, NEW.user_id) AND (b.until, b.id) < (o.until, o.id);
		UPDATE rate_limit_bans SET user_id = NEW.user_id WHERE user_id = OLD.user_id;
	ELSIF OLD.tier = 'anonymous' THEN
		RAISE EXCEPTION 'tier: ''anonymous'': must keep its name: it is the tier of requests without a user' USING ERRCODE = 'check_violation';
	ELSE
		UPDATE rate_limit_rules SET tiers = array_replace(tiers, OLD.tier, NEW.tier) WHERE OLD.tier = ANY (tiers);
	END IF;
	RETURN NULL;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF user_id ON rate_limit_users FOR EACH ROW WHEN (OLD.user_id <> NEW.user_id) EXECUTE FUNCTION rate_limit_rename_references();
--;
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF tier ON rate_limit_tiers FOR EACH ROW WHEN (OLD.tier <> NEW.tier) EXECUTE FUNCTION rate_limit_rename_references();
--;
CREATE OR REPLACE FUNCTION rate_limit_count_as() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
	SET enable_seqscan = off AS $$
DECLARE
	name CONSTANT text := to_jsonb(NEW) ->> TG_ARGV[0];
	old_name text := name;
	n int := 1;
	taken boolean := true;
BEGIN
	IF TG_OP = 'UPDATE' THEN
		old_name := to_jsonb(OLD) ->> TG_ARGV[0];
	END IF;
	IF old_name <> name AND NEW.counted_as IS NOT DISTINCT FROM OLD.counted_as THEN
		NEW.counted_as := coalesce(OLD.counted_as, old_name);
	ELSIF NEW.counted_as IS NULL THEN
		LOOP
			EXECUTE format('SELECT EXISTS (SELECT FROM %1$s r WHERE r.%2$I <> $1
				AND coalesce(r.counted_as, r.%2$I) = $2)', TG_RELID::regclass, TG_ARGV[0])
				INTO taken USING old_name, coalesce(NEW.counted_as, name);
			EXIT WHEN NOT taken;
			n := n + 1;
			NEW.counted_as := name || '-' || n;
		END LOOP;
	END IF;
	NEW.counted_as := nullif(NEW.counted_as, name);
	RETURN NEW;
END $$;
--;
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF name, counted_as ON rate_limit_rules FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('name');
--;
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF user_id, counted_as ON rate_limit_users FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('user_id');
--;
COMMENT ON FUNCTION rate_limit_rename_references IS 'Updates the bans of a renamed user, and the rules for a renamed tier.';
--;
COMMENT ON FUNCTION rate_limit_count_as IS 'Keeps the name by which a renamed rule or user counts, and gives a new one a name by which no other one counts.';
--;
CREATE OR REPLACE FUNCTION rate_limit_change_ref(kind text, r jsonb) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT CASE kind WHEN 'key' THEN substr(r->>'digest', 3) WHEN 'limit' THEN concat(r->>'rule', '/', r->>'name') WHEN 'rule' THEN r->>'name' WHEN 'tier' THEN r->>'tier' WHEN 'user' THEN r->>'user_id'
		WHEN 'price' THEN r->>'model'
		ELSE coalesce('network/' || (r->>'network'), 'user/' || (r->>'user_id'), 'tier/' || (r->>'tier'), concat('key/', (SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k
				WHERE k.id = (r->>'key_id')::bigint))) END
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_log_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	kind CONSTANT text := TG_ARGV[0];
	actor CONSTANT text := coalesce(nullif(current_setting('role'), 'none'), session_user) || coalesce(' (' || nullif(left(current_setting('rate_limit.person', true), 100), '') || ')', '');
	most CONSTANT int := 1000;
	changed int := 0;
BEGIN
	IF TG_OP <> 'TRUNCATE' THEN
		SELECT count(*) INTO changed FROM (SELECT FROM changed_rows LIMIT most + 1) AS counted;
	END IF;
	IF TG_OP = 'TRUNCATE' OR changed > most THEN
		INSERT INTO rate_limit_changes (kind, by) VALUES (kind, actor);
	ELSIF TG_OP <> 'UPDATE' THEN
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) SELECT kind, rate_limit_change_ref(kind, c.r), actor, CASE TG_OP WHEN 'DELETE' THEN c.r END, CASE TG_OP WHEN 'INSERT' THEN c.r END
			FROM (SELECT to_jsonb(x) AS r FROM changed_rows AS x) AS c;
	ELSE
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) WITH o AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref FROM changed_rows AS x),
				n AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref FROM new_rows AS x)
			SELECT kind, coalesce(n.ref, o.ref), actor, o.r, n.r
			FROM o FULL JOIN n ON o.ref = n.ref AND concat(o.r->>TG_ARGV[1], '/', o.r->>TG_ARGV[2]) = concat(n.r->>TG_ARGV[1], '/', n.r->>TG_ARGV[2])
			WHERE o.r - 'updated_at' IS DISTINCT FROM n.r - 'updated_at';
	END IF;
	RETURN NULL;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.updated_at := now();
	RETURN NEW;
END $$;
--;
DO $$
DECLARE
	logged record;
	event record;
BEGIN
	FOR logged IN SELECT * FROM (VALUES ('rate_limit_tiers', 'tier', 'tier', ''), ('rate_limit_users', 'user', 'user_id', ''), ('rate_limit_api_keys', 'key', 'id', ''),
		('rate_limit_rules', 'rule', 'name', ''), ('rate_limit_rule_limits', 'limit', 'rule', 'name'), ('rate_limit_overrides', 'override', 'id', ''),
		('rate_limit_bans', 'ban', 'id', ''),
		('rate_limit_prices', 'price', 'model', 'valid')) AS t(name, kind, key1, key2)
	LOOP
		IF logged.kind IN ('user', 'rule', 'price') THEN
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_touch BEFORE UPDATE ON %I FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION rate_limit_touch()', logged.name);
		END IF;
		FOR event IN SELECT * FROM (VALUES ('insert', 'REFERENCING NEW TABLE AS changed_rows'), ('delete', 'REFERENCING OLD TABLE AS changed_rows'),
			('update', 'REFERENCING OLD TABLE AS changed_rows NEW TABLE AS new_rows'), ('truncate', '')) AS e(name, transition)
		LOOP
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_log_%s AFTER %s ON %I %s FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_log_changes(%L, %L, %L)',
				event.name, event.name, logged.name, event.transition, logged.kind, logged.key1, logged.key2);
		END LOOP;
	END LOOP;
END $$;
--;
COMMENT ON FUNCTION rate_limit_change_ref IS 'Returns the ref of a changed row. For a ban or override of a deleted key, it is key/ without the digest, which the change of the key itself has.';
--;
COMMENT ON FUNCTION rate_limit_log_changes IS 'Writes rate_limit_changes.';
--;
COMMENT ON FUNCTION rate_limit_touch IS 'Sets updated_at.';
--;
CREATE OR REPLACE FUNCTION rate_limit_refuse(fault text, code text DEFAULT 'check_violation') RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	IF fault IS NOT NULL THEN
		RAISE EXCEPTION USING ERRCODE = code, MESSAGE = fault;
	END IF;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_write(statement text, list jsonb, section text DEFAULT NULL)
	RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	many CONSTANT int := jsonb_array_length(list);
	total bigint;
	fault text;
	message text;
	detail text;
	missing text;
BEGIN
	EXECUTE statement USING list;
	GET DIAGNOSTICS total = ROW_COUNT;
	RETURN total;
EXCEPTION WHEN integrity_constraint_violation OR invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, missing = COLUMN_NAME;
	IF many > 1 THEN
		PERFORM rate_limit_write(statement, (SELECT jsonb_agg(d.o) FROM jsonb_array_elements(list) WITH ORDINALITY AS d(o, place) WHERE (d.place > many / 2) = second), section)
			FROM unnest('{f,t}'::boolean[]) AS second;
	END IF;
	RAISE check_violation USING MESSAGE = concat(left(section, -1) || ' "' || (list -> 0 ->> 'name') || '": ',
		CASE WHEN missing = '' THEN rate_limit_fault(fault, message, detail, list -> 0 -> 'document')
		WHEN list -> 0 -> 'reset' ? missing THEN missing || ': must have a value, and has no default'
		ELSE missing || ': must be given for a new row' END);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_set(relation regclass, keys text[], fields jsonb, reset text[]) RETURNS text
	LANGUAGE plpgsql AS $$
DECLARE
	inputs CONSTANT jsonb := jsonb_strip_nulls(fields);
	list CONSTANT jsonb := jsonb_build_array(jsonb_build_object('document', inputs, 'reset', reset));
	names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(inputs));
	resets CONSTANT text[] := ARRAY(SELECT n FROM unnest(reset) AS n WHERE NOT inputs ? n);
	others CONSTANT text[] := ARRAY(SELECT n FROM jsonb_object_keys(fields) AS n WHERE n <> ALL (keys));
	sets text := format('%1$I = x.%1$I', keys[1]);
	same CONSTANT text := (SELECT string_agg(format(CASE WHEN inputs ? k THEN 'x.%1$I = t.%1$I' ELSE 'x.%I IS NULL' END, k), ' AND ') FROM unnest(keys) AS k);
	source CONSTANT text := format('jsonb_populate_record(NULL::%s, $1 -> 0 -> ''document'') t', relation);
BEGIN
	PERFORM rate_limit_refuse(CASE names WHEN '{}' THEN keys[1] || ': must be given' END);
	PERFORM rate_limit_refuse(format('reset: %s: must be one of %s', to_json(n), array_to_string(others, ', '))) FROM unnest(reset) AS n WHERE n <> ALL (others) OR n IS NULL;
	PERFORM rate_limit_refuse(format('%s: must not be both given and reset', n)) FROM unnest(reset) AS n WHERE inputs ? n;
	SELECT coalesce(string_agg(format(CASE WHEN n = ANY (resets) THEN '%1$I = DEFAULT' ELSE '%1$I = t.%1$I' END, n), ', '), sets) INTO sets FROM unnest(others) AS n WHERE n = ANY (names || resets);
	FOR attempt IN 1..2 LOOP -- Another session may insert the row between the two statements.
		IF rate_limit_write(format('UPDATE %s x SET %s FROM %s WHERE %s', relation, sets, source, same), list) > 0 THEN
			RETURN 'changed';
		ELSIF rate_limit_write(format('INSERT INTO %s (%2$s) SELECT %2$s FROM %3$s ON CONFLICT (%4$s) DO NOTHING', relation, (SELECT string_agg(quote_ident(n), ', ') FROM unnest(names) AS n), source,
			(SELECT string_agg(quote_ident(k), ', ') FROM unnest(keys) AS k)), list) > 0 THEN
			RETURN 'created';
		END IF;
	END LOOP;
	RETURN 'kept'; -- Another session deletes the row that INSERT finds.
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_override(rule text, limit_name text, amount text DEFAULT NULL, tier text DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, burst bigint DEFAULT NULL,
	until timestamptz DEFAULT NULL, reason text DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	own rate_limit_rule_limits;
	old rate_limit_overrides;
	span tstzrange := '(,)';
BEGIN
	IF $3 !~ '^(unlimited|\d{1,18}|\d+[.]\d+)$' THEN
		RAISE EXCEPTION 'amount of %/%: %: must be a number, or unlimited', $1, $2, to_json($3) USING ERRCODE = 'invalid_parameter_value';
	ELSIF $8 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($8) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO own FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR SHARE;
	IF NOT FOUND THEN
		RAISE EXCEPTION '%/%: no such %', $1, $2, (SELECT coalesce('limit: must be one of ' || string_agg( l.rule || '/' || l.name, ', ' ORDER BY l.rule, l.name), 'rule, or it has no limit')
			FROM rate_limit_rule_limits l WHERE l.rule = $1) USING ERRCODE = 'no_data_found';
	END IF;
	SELECT o.* INTO old FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = ($1, $2) AND (o.tier, o.user_id, o.key_id) IS NOT DISTINCT FROM ($4, $5, $6)
		AND CASE WHEN $8 IS NULL THEN o.valid = '(,)' ELSE o.valid @> now() AND NOT upper_inf(o.valid) END
		ORDER BY lower(o.valid) DESC NULLS LAST LIMIT 1 FOR UPDATE;
	IF $8 IS NOT NULL THEN
		span := tstzrange(CASE WHEN old.id IS NULL THEN now() ELSE lower(old.valid) END, $8);
		UPDATE rate_limit_overrides o SET valid = span WHERE o.id = old.id;
	END IF;
	RETURN rate_limit_set('rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}', jsonb_build_object('rule', $1, 'limit_name', $2, 'tier', $4, 'user_id', $5, 'key_id', $6, 'valid', span,
			'events', CASE WHEN $3 IS NULL AND old.id IS NULL THEN own.events
			WHEN $3 <> 'unlimited' THEN rate_limit_units($3, own.unit) END,
			'burst', $7, 'reason', $9),
		CASE WHEN $3 = 'unlimited' THEN '{events}' ELSE '{}' END::text[] || $10);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_ban(network cidr DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF num_nonnulls($1, $2, $3) <> 1 THEN
		RAISE invalid_parameter_value USING MESSAGE = format('network, user_id, key_id: exactly one of them must be given, not %s', num_nonnulls($1, $2, $3));
	ELSIF $4 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($4) USING ERRCODE = 'invalid_parameter_value';
	ELSIF family($1) = 6 AND masklen($1) = 128 THEN
		RAISE WARNING '% is one of 2^64 addresses of its client: ban % to ban the client', host($1), network(set_masklen($1::inet, 64)) USING ERRCODE = 'RL003';
	END IF;
	RETURN rate_limit_set('rate_limit_bans', ARRAY[CASE WHEN $1 IS NOT NULL THEN 'network' WHEN $2 IS NOT NULL
		THEN 'user_id' ELSE 'key_id' END], jsonb_build_object('network', $1, 'user_id', $2, 'key_id', $3, 'until', $4, 'reason', $5, 'banned_at', NULL, 'banned_by', NULL),
		array_remove(ARRAY['banned_at', 'banned_by', CASE WHEN $4 IS NULL THEN 'until' END, CASE WHEN $5 IS NULL THEN 'reason' END], NULL));
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_network(network inet) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN network <<= '::ffff:0.0.0.0/96'
	THEN set_masklen(inet '0.0.0.0' + (network - inet '::ffff:0.0.0.0'), masklen(network) - 96) ELSE network END;
--;
CREATE OR REPLACE FUNCTION rate_limit_unban(network inet DEFAULT NULL, user_id text DEFAULT NULL,
	key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_bans b WHERE b.user_id = $2 OR b.key_id = $3 OR rate_limit_network(b.network) = rate_limit_network($1);
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_override(rule text, limit_name text, tier text DEFAULT NULL,
	user_id text DEFAULT NULL, key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_overrides o WHERE o.rule = $1 AND o.limit_name = $2 AND (o.tier = $3 OR o.user_id = $4 OR o.key_id = $5);
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_rename(kind text, name text, new text) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	fault text;
	message text;
BEGIN
	IF kind = 'tier' THEN
		UPDATE rate_limit_tiers t SET tier = $3 WHERE t.tier = $2;
	ELSIF kind = 'rule' THEN
		UPDATE rate_limit_rules r SET name = $3 WHERE r.name = $2;
	ELSE
		RAISE EXCEPTION 'kind: %: must be rule or tier', to_json(kind) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
	RAISE check_violation USING MESSAGE = format('%s: %s: must be a name that no %1$s has', $1, to_json($3));
WHEN integrity_constraint_violation THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT;
	RAISE check_violation USING MESSAGE = rate_limit_fault(fault, message, NULL, jsonb_build_object('tier', $3, 'name', $3));
END $$;
--;
COMMENT ON FUNCTION rate_limit_refuse IS 'Fails with a fault, unless it is NULL.';
--;
COMMENT ON FUNCTION rate_limit_write IS 'Runs a statement that writes the rows of a list, and returns their number. The error names the row that the server refuses, the field, its value and what it must be.';
--;
COMMENT ON FUNCTION rate_limit_set IS 'Creates or changes a row, which the columns keys identify. A field that is null is not set. A column in reset gets its default. Returns created, changed, or kept: another session deletes the row.';
--;
COMMENT ON TABLE rate_limit_overrides IS 'Amounts that replace the amount of a limit for a tier, a user or an API key. The override for the key applies, otherwise the override for the user, otherwise the override for the tier. If several overrides of the same kind are valid, the one that became valid last applies.';
--;
COMMENT ON COLUMN rate_limit_overrides.id IS 'The number of the override.';
--;
COMMENT ON COLUMN rate_limit_overrides.rule IS 'The rule of the limit.';
--;
COMMENT ON COLUMN rate_limit_overrides.limit_name IS 'The name of the limit.';
--;
COMMENT ON COLUMN rate_limit_overrides.tier IS 'For all users of this tier.';
--;
COMMENT ON COLUMN rate_limit_overrides.user_id IS 'For this user.';
--;
COMMENT ON COLUMN rate_limit_overrides.key_id IS 'For this API key.';
--;
COMMENT ON COLUMN rate_limit_overrides.events IS 'The amount in place of the limit''s amount, in millionths for money. 0: nothing passes. NULL: unlimited.';
--;
COMMENT ON COLUMN rate_limit_overrides.burst IS 'The burst in place of the limit''s burst. NULL: the limit''s burst.';
--;
COMMENT ON COLUMN rate_limit_overrides.valid IS 'When the override applies.';
--;
COMMENT ON COLUMN rate_limit_overrides.reason IS 'A note. Proxies ignore it.';
--;
COMMENT ON COLUMN rate_limit_overrides.created_at IS 'When the row was created.';
--;
COMMENT ON COLUMN rate_limit_overrides.created_by IS 'The role that created the row.';
--;
COMMENT ON FUNCTION rate_limit_override IS 'Sets another amount of a limit for a tier, a user or an API key, for ever or until a time. The amount is a number, or unlimited. A new override without an amount gets the amount of the limit, and keeps that amount when the rule changes.';
--;
COMMENT ON TABLE rate_limit_bans IS 'The banned networks, users and API keys. Deleting the row lifts the ban.';
--;
COMMENT ON COLUMN rate_limit_bans.id IS 'The number of the ban.';
--;
COMMENT ON COLUMN rate_limit_bans.network IS 'All addresses of this network.';
--;
COMMENT ON COLUMN rate_limit_bans.user_id IS 'This user, who need not be in rate_limit_users.';
--;
COMMENT ON COLUMN rate_limit_bans.key_id IS 'This API key.';
--;
COMMENT ON COLUMN rate_limit_bans.until IS 'When the ban ends. infinity: never.';
--;
COMMENT ON COLUMN rate_limit_bans.reason IS 'A note. Clients do not see it.';
--;
COMMENT ON COLUMN rate_limit_bans.banned_at IS 'When rate_limit_ban last set this ban.';
--;
COMMENT ON COLUMN rate_limit_bans.banned_by IS 'The role that last set this ban.';
--;
COMMENT ON FUNCTION rate_limit_ban IS 'Bans a network, a user or an API key, for ever or until a time. An existing ban gets this end and this reason.';
--;
COMMENT ON FUNCTION rate_limit_network IS 'An IPv4 address or network in IPv6 form, such as ::ffff:192.0.2.1, as IPv4, and any other address unchanged. Proxies treat both forms as equal.';
--;
COMMENT ON FUNCTION rate_limit_unban IS 'Lifts a ban, and returns whether there was one. An IPv4 network is equal to its IPv6 form.';
--;
COMMENT ON FUNCTION rate_limit_delete_override IS 'Deletes the overrides of a limit for a tier, a user or an API key, and returns whether there was one.';
--;
COMMENT ON FUNCTION rate_limit_rename IS 'Renames a rule or a tier in all rows that refer to it. kind is rule or tier. Returns whether it existed. A renamed rule keeps its counters.';
--;
CREATE OR REPLACE FUNCTION rate_limit_rates_in_force() RETURNS jsonb LANGUAGE sql STABLE AS $$
	SELECT coalesce(jsonb_object_agg(p.model, rate_limit_rates(p)), '{}') FROM ( SELECT DISTINCT ON (model) * FROM rate_limit_prices WHERE valid @> now()
		ORDER BY model, lower(valid) DESC NULLS LAST) AS p
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_price_fault(before jsonb, after jsonb) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT format('%s: %s: must differ by no more than ten times from %s, the price in force, unless it is forced: --force, or in SQL force => true', rtrim(a.key, '.'),
			trim_scale(n.now), trim_scale(n.was))
		FROM jsonb_each_text(after) a, LATERAL (SELECT a.value::numeric AS now, (before ->> a.key)::numeric AS was) n
		WHERE n.now > 10 * n.was OR n.was > 10 * n.now ORDER BY length(a.key), a.key LIMIT 1
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_price(model text, input numeric DEFAULT NULL, output numeric DEFAULT NULL, cache_read numeric DEFAULT NULL, cache_write numeric DEFAULT NULL,
	above bigint DEFAULT NULL, above_input numeric DEFAULT NULL, above_output numeric DEFAULT NULL, above_cache_read numeric DEFAULT NULL, above_cache_write numeric DEFAULT NULL,
	max_output bigint DEFAULT NULL, valid tstzrange DEFAULT NULL, comment text DEFAULT NULL, reset text[] DEFAULT NULL, parts text[] DEFAULT NULL, tiers text[] DEFAULT NULL,
	force boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	fields CONSTANT jsonb := (SELECT to_jsonb(f) FROM (SELECT rate_limit_model($1) AS model, coalesce($12, (SELECT p.valid FROM rate_limit_prices p WHERE p.model = rate_limit_model($1)
			AND p.valid @> now() ORDER BY lower(p.valid) DESC NULLS LAST LIMIT 1), '(,)') AS valid,
		input, output, cache_read, cache_write, above, above_input, above_output, above_cache_read,
		above_cache_write, max_output, comment, parts, tiers, NULL AS source) AS f);
	before CONSTANT jsonb := rate_limit_rates_in_force() -> (fields ->> 'model');
	result CONSTANT text := rate_limit_set('rate_limit_prices', '{model,valid}', fields, reset || '{source}');
	fault text;
	lacking text;
BEGIN
	SELECT rate_limit_price_fault(before, r), (SELECT string_agg(rtrim(b.key, '.') || '=' || b.value, ', ' ORDER BY b.key) FROM jsonb_each_text(before) b WHERE NOT r ? b.key)
		INTO fault, lacking FROM rate_limit_prices p, rate_limit_rates(p) r
		WHERE (p.model, p.valid) = (fields ->> 'model', (fields ->> 'valid')::tstzrange);
	PERFORM rate_limit_refuse(fault) WHERE force IS NOT TRUE;
	IF result = 'created' AND lacking IS NOT NULL THEN
		RAISE WARNING 'price %: lacks % of the price in force: these parts cost what their neighbors do', fields -> 'model', lacking USING ERRCODE = 'RL003';
	END IF;
	RETURN result;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_price(model text, valid tstzrange DEFAULT NULL) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_prices p WHERE p.model = rate_limit_model($1) AND ($2 IS NULL OR p.valid = $2);
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_import_prices(list jsonb, source text, replace boolean DEFAULT false, force boolean DEFAULT false, dry_run boolean DEFAULT false)
	RETURNS TABLE (model text, what text, price text, before text, after text) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	ended rate_limit_prices[];
	made rate_limit_prices[];
	fault text;
	first text;
BEGIN
	LOCK TABLE rate_limit_prices IN SHARE ROW EXCLUSIVE MODE;
	FOR r IN WITH held AS MATERIALIZED ( SELECT DISTINCT ON (p.model) p.model, p.source, p AS row FROM rate_limit_prices p WHERE p.valid @> now() ORDER BY p.model, lower(p.valid) DESC NULLS LAST
		), patterns AS MATERIALIZED ( SELECT h.model, h.row FROM held h WHERE h.model LIKE '_%*' AND h.source IS NULL AND NOT $3
		) SELECT m.name, n AS row, h.row AS old, coalesce(h.row, p.row) AS held, coalesce(h.model, p.model) IS NULL AS is_new,
			p.model IS NOT NULL OR h.model IS NOT NULL AND h.source IS NULL AND NOT $3 AS is_kept
		FROM jsonb_populate_recordset(NULL::rate_limit_prices, list) n
		CROSS JOIN LATERAL (SELECT rate_limit_model(n.model) AS name) m
		LEFT JOIN held h ON h.model = m.name
		LEFT JOIN LATERAL (SELECT * FROM patterns p WHERE h.model IS NULL AND starts_with(m.name, rtrim(p.model, '*')) ORDER BY length(p.model) DESC LIMIT 1) p ON true
		ORDER BY m.name
	LOOP
		fault := CASE WHEN NOT $4 AND NOT r.is_kept THEN rate_limit_price_fault(rate_limit_rates(r.old), rate_limit_rates(r.row)) END;
		RETURN QUERY WITH d AS ( SELECT rtrim(name, '.') AS name, h.value AS was, l.value AS is FROM jsonb_each_text(rate_limit_rates(r.held)
				|| jsonb_strip_nulls(jsonb_build_object('max_output', (r.held).max_output))) h(name, value)
			FULL JOIN jsonb_each_text(rate_limit_rates(r.row) || jsonb_strip_nulls(jsonb_build_object('max_output', (r.row).max_output))) l(name, value) USING (name)
			WHERE h.value::numeric IS DISTINCT FROM l.value::numeric
		) SELECT r.name, CASE WHEN r.is_kept THEN 'kept' WHEN fault IS NOT NULL THEN 'needs force' ELSE 'changed' END, d.name, trim_scale(d.was::numeric)::text, trim_scale(d.is::numeric)::text
		FROM d WHERE NOT r.is_new
		UNION ALL SELECT r.name, 'created', NULL, NULL, string_agg(concat(d.name, '=', d.is), ' ' ORDER BY length(d.name), d.name) FROM d WHERE r.is_new HAVING count(*) > 0;
		CONTINUE WHEN NOT FOUND OR r.is_kept;
		first := coalesce(first, 'price "' || r.name || '": ' || fault);
		ended := array_append(ended, r.old);
		made := array_append(made, r.row);
	END LOOP;
	PERFORM rate_limit_refuse(first) WHERE NOT dry_run;
	BEGIN
		UPDATE rate_limit_prices p SET valid = p.valid * tstzrange(NULL, now()) FROM unnest(ended) e WHERE (p.model, p.valid) = (e.model, e.valid);
		INSERT INTO rate_limit_prices (model, valid, input, cache_read, cache_write, output, max_output, parts, tiers, comment, source) SELECT m.model, CASE WHEN EXISTS (SELECT FROM rate_limit_prices p
					WHERE p.model = rate_limit_model(m.model)) THEN tstzrange(now(), NULL) ELSE '(,)' END,
				m.input, m.cache_read, m.cache_write, m.output, m.max_output, m.parts, m.tiers, m.comment, $2
			FROM unnest(made) m;
		IF dry_run THEN
			RAISE SQLSTATE 'RL000';
		END IF;
	EXCEPTION WHEN SQLSTATE 'RL000' THEN
		NULL; -- The exception undoes the changes of the block.
	END;
END $$;
--;
COMMENT ON FUNCTION rate_limit_rates_in_force IS 'The prices in force, by model, as of rate_limit_rates.';
--;
COMMENT ON FUNCTION rate_limit_price_fault IS 'What is wrong with prices, as of rate_limit_rates, if one has more than ten times, or less than a tenth of, the price of this name before. NULL: nothing.';
--;
COMMENT ON FUNCTION rate_limit_price IS 'Creates or changes the price of a model that holds in a time, by default the one in force: for a million tokens of each kind. A new price needs input and output, and a warning names what it lacks of the one in force. parts has the prices of other parts and of steps, and tiers the prices of tiers of service, as in the table. force permits a price that differs by more than ten times from the one in force.';
--;
COMMENT ON FUNCTION rate_limit_delete_price IS 'Deletes the prices of a model, or the one that holds in a time, and returns whether there was one.';
--;
COMMENT ON FUNCTION rate_limit_import_prices IS 'Makes the prices of a list hold from now on, and returns the differences to those in force: a price that is created or changed, or that is kept, because its row was made by hand, unless replace. A row in force that differs ends. source names the list. force permits a price that differs by more than ten times from the one in force. dry_run checks everything and changes nothing.';
--;
CREATE OR REPLACE FUNCTION rate_limit_bills("from" timestamptz, until timestamptz, model text DEFAULT NULL, ids uuid[] DEFAULT NULL) RETURNS TABLE (id uuid, "time" timestamptz, user_id text, key_id bigint, ancestors text[], tier text,
	lines jsonb) LANGUAGE plpgsql STABLE AS $$
DECLARE
	days CONSTANT datemultirange := rate_limit_ledger_window("from", greatest(until, "from"));
	named CONSTANT text := rate_limit_model(model);
	among CONSTANT text := CASE WHEN ids IS NOT NULL THEN format(' = ANY (%L::uuid[])', ids) END;
	whole CONSTANT boolean := ids IS NOT NULL;
BEGIN
	IF until <= "from" THEN
		RAISE invalid_parameter_value USING MESSAGE = format('until: %s: must be after from, %s', to_json(until), to_json("from"));
	END IF;
	RETURN QUERY EXECUTE format('WITH b AS (
			SELECT b.*, CASE WHEN b.charges IS NULL THEN b.lines::bigint ELSE 0 END AS n,
				b.money * 1000::numeric + coalesce(b.remainder, 0) AS billionths FROM (%s) b
			WHERE b.time >= $1 AND least(b.time, rate_limit_began(b.id)) < $2 AND b.input IS NOT NULL
		), c AS (
			SELECT c.corrects AS id, CASE WHEN c.charges IS NULL THEN c.lines::bigint ELSE 0 END AS n,
				sum(c.money * 1000::numeric + coalesce(c.remainder, 0)) AS billionths
			FROM (%s) c GROUP BY 1, 2
		)
		SELECT b.id, b.time, b.user_id, b.key_id, b.ancestors, b.tier, jsonb_agg(jsonb_build_object(
			''model'', b.model, ''billionths'', CASE WHEN c.billionths IS NULL THEN b.billionths
				ELSE coalesce(b.billionths, 0) + c.billionths END, ''parts'',
			ARRAY[b.input, b.cache_read, b.cache_write, b.cache_write_1h, b.output, b.audio_input,
				b.audio_cache_read, b.audio_output, b.image_input, b.image_output, b.search,
				CASE n WHEN 0 THEN 1 END], ''charges'', CASE WHEN $4 THEN b.charges END) ORDER BY n)
		FROM b LEFT JOIN c USING (id, n)
		GROUP BY b.day, b.id, b.time, b.user_id, b.key_id, b.ancestors, b.tier
		HAVING $3 IS NULL OR bool_or(CASE WHEN $3 LIKE ''%%*''
			THEN starts_with(rate_limit_model(b.model), left($3, -1))
			ELSE rate_limit_model(b.model) = $3 END)',
		rate_limit_ledger_source(days, concat('AND kind = ''charge''', ' AND id' || among)),
		rate_limit_ledger_source(datemultirange(daterange(lower(days), 'infinity')), concat('AND corrects', coalesce(among, ' IS NOT NULL')))) USING "from", until, named, whole;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_correct_counters(changes jsonb) RETURNS void LANGUAGE plpgsql
	SET lock_timeout = '200ms' AS $$
DECLARE
	moved CONSTANT text := 'jsonb_to_recordset($1) x("time" timestamptz, billionths numeric, prefix text, key text, durable boolean)';
	prefixes text[];
	keys text[];
	kinds jsonb;
	place regclass;
BEGIN
	SELECT array_agg(k.prefix), array_agg(k.key) INTO prefixes, keys FROM (SELECT DISTINCT x.prefix, x.key FROM jsonb_to_recordset($1) x(prefix text, key text, durable boolean) WHERE x.durable) k;
	IF to_regclass('rate_limit_rule_limits') IS NOT NULL THEN
		kinds := (SELECT jsonb_object_agg(rate_limit_counted_prefix(concat_ws('/', 'rule', l.rule, l.name)), CASE WHEN l.calendar IS NULL THEN l.algorithm ELSE 'calendar' END)
			FROM rate_limit_rule_limits l WHERE l.unit = 'money');
	END IF;
	FOR place IN SELECT c.counters FROM rate_limit_counter_tables() c WHERE c.counters::text LIKE '%durable'
	LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT 1
				FROM %s c JOIN unnest($1, $2) AS u(prefix, key) USING (prefix, key)
			ORDER BY $3 ->> c.prefix COLLATE "C", c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c) l',
			place) USING prefixes, keys, kinds;
		EXECUTE format('UPDATE %1$s c SET count = ceil(n.now * 0.001),
				remainder = nullif(n.now - ceil(n.now * 0.001) * 1000, 0), prev_count = n.before
			FROM (SELECT c.prefix, c.key, greatest(0, greatest(0, c.count) * 1000::numeric
					+ coalesce(c.remainder, 0) + coalesce(sum(x.billionths)
						FILTER (WHERE x.time >= c.window_start), 0)) AS now,
				greatest(c.prev_count * 0, c.prev_count + ceil(coalesce(sum(x.billionths)
					FILTER (WHERE x.time < c.window_start), 0) * 0.001)) AS before
				FROM %1$s c JOIN %2$s USING (prefix, key)
				WHERE x.durable AND c.expires_at > now() AND (x.time >= c.window_start
					OR c.prev_count > 0 AND x.time >= c.window_start - (c.expires_at - c.window_start) / 2)
				GROUP BY c.prefix, c.key) n
			WHERE c.prefix = n.prefix AND c.key = n.key', place, moved) USING $1;
	END LOOP;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_correct(bills jsonb, reason text) RETURNS bigint
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
	corrected bigint;
	moved jsonb;
BEGIN
	IF coalesce(btrim(reason), '') = '' THEN
		RAISE invalid_parameter_value USING MESSAGE = 'reason: must be given';
	END IF;
	PERFORM pg_advisory_xact_lock(1885827697);
	IF to_regclass('rate_limit_ledger' || to_char(today, '_YYYYMMDD')) IS NULL THEN
		PERFORM rate_limit_ledger_upkeep();
	END IF;
	WITH made AS (INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, tier, charges,
			kind, corrects, corrects_time, corrected_by, reason, model, money, remainder, price, price_valid,
			lines)
	SELECT today, gen_random_uuid(), now(), o.user_id, o.key_id, o.ancestors, o.tier, coalesce(( SELECT jsonb_agg(c || jsonb_build_object('units', (SELECT sum(m) FROM unnest(d.all) m) * 0.001))
			FROM jsonb_path_query(o.lines -> 0 -> 'charges', '$[*][*] ? (@.unit == "money")') c), '[]'),
		'correction', o.id, o.time, rate_limit_caller(), $2, o.lines -> 0 ->> 'model', ceil(d.all[1] * 0.001),
		nullif(d.all[1] - ceil(d.all[1] * 0.001) * 1000, 0), b.lines -> 0 ->> 'price',
		(b.lines -> 0 ->> 'price_valid')::tstzrange, d.further
	FROM jsonb_to_recordset($1) AS b(id uuid, "time" timestamptz, lines jsonb)
	JOIN (SELECT min(t.time) AS first, max(t.time) AS last, array_agg(t.id) AS ids FROM jsonb_to_recordset($1) AS t(id uuid, "time" timestamptz)) r ON true
	JOIN LATERAL rate_limit_bills(r.first, r.last + interval '1 us', ids => r.ids) o ON o.id = b.id
	CROSS JOIN LATERAL ( SELECT array_agg(x.more ORDER BY x.n) AS all, jsonb_agg(jsonb_build_object('model', x.old ->> 'model',
			'money', x.more * 0.001, 'price', x.new -> 'price', 'price_valid', x.new -> 'price_valid')
			ORDER BY x.n) FILTER (WHERE x.n > 1) AS further
		FROM (SELECT p.n, p.old, n.new, (n.new ->> 'billionths')::numeric - coalesce((p.old ->> 'billionths')::numeric, 0) AS more FROM jsonb_array_elements(o.lines) WITH ORDINALITY AS p(old, n)
			LEFT JOIN jsonb_array_elements(b.lines) WITH ORDINALITY AS n(new, n) ON n.n = p.n) x
	) d
	WHERE 0 <> ANY (d.all) RETURNING id, corrects_time, charges)
	SELECT count(DISTINCT m.id), jsonb_agg(c || jsonb_build_object('time', m.corrects_time, 'billionths', (c ->> 'units')::numeric * 1000)) FILTER (WHERE c ->> 'key' IS NOT NULL) INTO corrected, moved
		FROM made m LEFT JOIN LATERAL jsonb_array_elements(m.charges) c ON true;
	PERFORM rate_limit_correct_counters(moved) WHERE moved IS NOT NULL;
	RETURN corrected;
END $$;
--;
COMMENT ON FUNCTION rate_limit_bills IS 'The requests that were charged from a time on, and came or were charged before another, with what each of their lines costs in billionths by the last correction. parts has the columns of the ledger in the order of prices, and then 1 for the request. model selects those with a line of a model, or of the models of a pattern. With ids, the first line of a request has its charges.';
--;
COMMENT ON FUNCTION rate_limit_correct_counters IS 'Changes durable counters by charges that cost more or less than they did, if the window of a counter has the charge, and not below 0. changes is a list of objects with the time of a charge, billionths, prefix, key and durable.';
--;
COMMENT ON FUNCTION rate_limit_correct IS 'Makes requests cost what bills say, with a row of the ledger of today for each that costs more or less now, and returns the number of these rows. Durable counters of limits in money change if their window has the charge of the request. bills is a list of objects with the id and the time of a request, and for each of its lines, as of rate_limit_bills, the price in billionths and the row of prices: {"id", "time", "lines": [{"billionths", "price", "price_valid"}]}. A line without billionths keeps its price.';
--;
CREATE OR REPLACE FUNCTION rate_limit_forget() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$
	DELETE FROM rate_limit_bans b WHERE b.until < now() - interval '30 days';
	WITH forgotten AS (DELETE FROM rate_limit_changes WHERE seq IN (SELECT seq FROM rate_limit_changes WHERE at < now() - interval '30 days' ORDER BY at LIMIT 10000) RETURNING seq)
	SELECT count(*) FROM forgotten
$$;
--;
COMMENT ON FUNCTION rate_limit_forget IS 'Deletes bans that ended more than 30 days ago, and up to 10,000 changes that are older than 30 days. Returns the number of deleted changes.';
--;
CREATE OR REPLACE VIEW rate_limit_banned WITH (security_invoker) AS SELECT b.id, CASE WHEN b.network IS NOT NULL THEN 'network' WHEN b.user_id IS NOT NULL THEN 'user' ELSE 'key' END AS kind,
		coalesce(b.network::text, b.user_id, b.key_id::text) AS banned, b.until, CASE WHEN isfinite(b.until) THEN b.until - now() END AS remaining, b.reason, b.banned_at, b.banned_by, b.network, b.user_id, b.key_id
	FROM rate_limit_bans b WHERE b.until > now();
--;
CREATE OR REPLACE FUNCTION rate_limit_counted(count_by text[], key text) RETURNS TABLE (dimension text, part text) LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC SELECT CASE WHEN strpos(count_by[1], '|') = 0 THEN count_by[1]
		ELSE split_part(count_by[1], '|', substring(key FROM '^([1-9])[|]')::int) END, CASE WHEN strpos(count_by[1], '|') = 0 THEN key ELSE substr(key, 3) END WHERE cardinality(count_by) = 1;
END;
--;
DO $do$ BEGIN EXECUTE replace($sql$ CREATE OR REPLACE FUNCTION rate_limit_override_of(rule text, limit_name text, user_id text, key_id bigint)
RETURNS TABLE (id bigint, events bigint, burst bigint) LANGUAGE sql STABLE AS $$
	SELECT o.id, o.events, o.burst FROM {schema}.rate_limit_overrides o
	WHERE o.rule = $1 AND o.limit_name = $2 AND o.valid @> now() AND (o.key_id = $4 OR o.user_id = coalesce($3, (SELECT k.user_id FROM {schema}.rate_limit_api_keys k WHERE k.id = $4))
		OR o.tier = (SELECT coalesce(k.tier, CASE WHEN u.tier_until > now() THEN u.tier END) FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_api_keys k ON k.id = $4
				LEFT JOIN {schema}.rate_limit_users u ON u.user_id = coalesce($3, k.user_id)))
	ORDER BY o.key_id NULLS LAST, o.user_id NULLS LAST, lower(o.valid) DESC NULLS LAST, o.id DESC LIMIT 1
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
--;
CREATE OR REPLACE VIEW rate_limit_used WITH (security_invoker) AS SELECT l.rule, l.name AS limit_name, c.key COLLATE "C" AS key, l.algorithm, CASE l.unit WHEN 'money' THEN rate_limit_money(u.used, CASE WHEN u.used > 0 THEN c.remainder END)
			ELSE u.used END AS used, rate_limit_decimal(c.held, l.unit) AS held, rate_limit_decimal(q.quota, l.unit) AS quota, (100::numeric * (u.used::numeric + c.held) / CASE WHEN q.quota > 0 THEN q.quota ELSE 1 + q.quota END)
			::numeric(20, 1) AS percent, u.resets_at, nullif(l.unit, 'requests') AS unit FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
	CROSS JOIN LATERAL rate_limit_counters(rate_limit_prefix(coalesce(r.counted_as, r.name), coalesce(l.counted_as, l.name)), coalesce(l.durable, l.unit <> 'requests')) c LEFT JOIN LATERAL (
		SELECT o.* FROM rate_limit_counted(r.count_by, c.key) d CROSS JOIN LATERAL (SELECT replace(replace(replace(d.part, '%20', ' '), '%3A', ':'), '%25', '%') AS name) n CROSS JOIN LATERAL rate_limit_override_of(l.rule, l.name,
			CASE d.dimension WHEN 'user' THEN coalesce((SELECT u.user_id FROM rate_limit_users u WHERE coalesce(u.counted_as, u.user_id) = n.name), n.name) END,
			CASE WHEN d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$' THEN d.part::bigint END) o ) o ON true CROSS JOIN LATERAL (SELECT CASE WHEN o.id IS NULL THEN l.events ELSE o.events END AS events, coalesce(o.burst, l.burst) AS burst) AS a
	CROSS JOIN LATERAL (SELECT CASE WHEN a.events IS NOT NULL THEN coalesce(a.burst, a.events) END AS quota) AS q CROSS JOIN LATERAL rate_limit_usage_of(l.algorithm, a.events, a.burst,
		(date_part('epoch', l.per) * 1000000)::bigint, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits, c.slots, c.expires_at) AS u;
--;
CREATE OR REPLACE VIEW rate_limit_near WITH (security_invoker) AS SELECT u.rule, u.limit_name, u.key, u.algorithm, u.used, u.held, u.quota, u.percent, u.unit
	FROM rate_limit_used u WHERE u.used + u.held > 0 AND u.used + u.held >= 0.8 * u.quota;
--;
CREATE OR REPLACE VIEW rate_limit_rule_warnings WITH (security_invoker) AS SELECT r.name AS rule, 'tiers' AS field, 'tiers: ' || string_agg(quote_literal(t), ', ' ORDER BY t) || ': not in rate_limit_tiers, so no user has them' AS warning
	FROM rate_limit_rules r CROSS JOIN unnest(r.tiers) AS t WHERE NOT EXISTS (SELECT FROM rate_limit_tiers k WHERE k.tier = t) GROUP BY r.name UNION ALL SELECT l.rule, l.name, l.name ||
		': 0: refuses every request, and no override has another amount: to refuse all requests, use action=block' FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
	WHERE l.events = 0 AND l.on_exceed = 'refuse' AND r.mode <> 'off' AND NOT EXISTS (SELECT FROM rate_limit_overrides o WHERE o.rule = l.rule AND o.limit_name = l.name AND o.valid @> now() AND o.events IS DISTINCT FROM 0)
		AND NOT EXISTS (SELECT FROM rate_limit_rules o WHERE o.family = r.family AND o.priority > r.priority AND o.mode <> 'off') UNION ALL SELECT m[1], 'proxies', format('%s cannot use it: %s', p.node, m[2])
	FROM rate_limit_proxies p, unnest(p.problems) AS problem, regexp_match(problem, '^rule ([^:,]+)[:,] (.*)$') AS m WHERE p.live AND m IS NOT NULL;
--;
CREATE OR REPLACE FUNCTION rate_limit_noticed(rule text, limit_name text, keys text[]) RETURNS TABLE (prefix text, key text, durable boolean, unit text, quota bigint, percents bigint[])
	LANGUAGE sql STABLE AS $$
	SELECT rate_limit_prefix(coalesce(r.counted_as, r.name), coalesce(l.counted_as, l.name)), u.key, coalesce(l.durable, l.unit <> 'requests'), l.unit,
		(u.quota * CASE l.unit WHEN 'money' THEN 1000000 ELSE 1 END)::bigint, l.notify
	FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule AND r.mode <> 'off' JOIN rate_limit_used u ON (u.rule, u.limit_name) = (l.rule, l.name)
	WHERE l.notify IS NOT NULL AND l.rule = $1 AND l.name = $2 AND u.key = ANY ($3) AND u.quota > 0 AND u.used * 100 >= u.quota * (SELECT min(p) FROM unnest(l.notify) p)
$$;
--;
COMMENT ON VIEW rate_limit_banned IS 'The bans that are in force.';
--;
COMMENT ON COLUMN rate_limit_banned.kind IS 'network, user or key.';
--;
COMMENT ON COLUMN rate_limit_banned.banned IS 'The network, the user, or the id of the key.';
--;
COMMENT ON COLUMN rate_limit_banned.remaining IS 'The time until the ban ends. NULL: never.';
--;
COMMENT ON FUNCTION rate_limit_counted IS 'Splits a key of one part into the dimension, such as user, and the value. If a rule counts by user|ip, the key 2|192.0.2.1 has the dimension ip. No row for more parts.';
--;
COMMENT ON FUNCTION rate_limit_override_of IS 'The override that now replaces the amount of a limit for a user or an API key. Proxies choose it in the same way. No row: the limit has its own amount.';
--;
COMMENT ON VIEW rate_limit_used IS 'The counters of rules, with the used part of their quota. If a counter is of one user or one API key, an override may replace the amount of the limit.';
--;
COMMENT ON COLUMN rate_limit_used.rule IS 'The rule.';
--;
COMMENT ON COLUMN rate_limit_used.algorithm IS 'The algorithm of the limit.';
--;
COMMENT ON COLUMN rate_limit_used.limit_name IS 'The limit of the rule.';
--;
COMMENT ON COLUMN rate_limit_used.key IS 'The key of the counter.';
--;
COMMENT ON COLUMN rate_limit_used.used IS 'The used units of the quota now.';
--;
COMMENT ON COLUMN rate_limit_used.held IS 'The units that running requests hold, of a limit of tokens or money.';
--;
COMMENT ON COLUMN rate_limit_used.quota IS 'The full quota: the burst, or the events. NULL: unlimited.';
--;
COMMENT ON COLUMN rate_limit_used.percent IS 'used and held as a percentage of quota, or of 1 if quota is 0.';
--;
COMMENT ON COLUMN rate_limit_used.resets_at IS 'As in rate_limit_usage_of.';
--;
COMMENT ON COLUMN rate_limit_used.unit IS 'What the limit counts. NULL: requests.';
--;
COMMENT ON VIEW rate_limit_near IS 'The counters of rules with at least 80 % of their quota used or held. Unlimited counters do not appear.';
--;
COMMENT ON VIEW rate_limit_rule_warnings IS 'Rules that proxies cannot use, or that probably do not have the intended effect.';
--;
COMMENT ON COLUMN rate_limit_rule_warnings.field IS 'What the warning is about: a column of the rule, the name of a limit, or proxies.';
--;
COMMENT ON COLUMN rate_limit_rule_warnings.warning IS 'The text of the warning.';
--;
COMMENT ON FUNCTION rate_limit_noticed IS 'The counters of a limit, among some keys, that have reached one of the percentages of its notify.';
--;
CREATE OR REPLACE FUNCTION rate_limit_spent(max_rows bigint DEFAULT 50) RETURNS TABLE (list text, name text, others bigint, requests bigint, today numeric, this_month numeric, month_before numeric, estimated numeric, corrected numeric)
	LANGUAGE sql STABLE SET jit = off SET work_mem = '64MB' AS $$
	WITH billing AS MATERIALIZED ( SELECT * FROM rate_limit_billing(NULL)
	), periods AS MATERIALIZED ( SELECT b.*, today.starts AS today, this.starts AS this, before.starts AS before FROM (SELECT bool_or(counted = '') IS TRUE AS usual, unit, zone, day
				FROM (SELECT * FROM billing UNION ALL VALUES (NULL, 'month', 'UTC', 1)) b GROUP BY 2, 3, 4) b,
			rate_limit_calendar_periods('day', b.zone, 1, now(), now()) today,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) this,
			LATERAL (SELECT this.starts - interval '1 us' AS ends) e,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, e.ends, e.ends) before
	), own_periods AS MATERIALIZED ( SELECT b.counted, p.* FROM billing b JOIN periods p USING (unit, zone, day) WHERE NOT p.usual
	), span AS MATERIALIZED ( SELECT date_trunc('day', min(before), 'UTC') AS lo, date_trunc('day', now(), 'UTC') + interval '24 h' AS hi FROM periods
	), unsummed AS MATERIALIZED ( SELECT t.*, NULL::timestamptz AS turn FROM span s, rate_limit_totals_of(NULL, s.lo, s.hi, each => true) t UNION ALL
		SELECT t.*, x.turn FROM (SELECT DISTINCT turn FROM periods p, unnest(ARRAY[p.today, p.this, p.before]) turn WHERE turn <> date_trunc('day', turn, 'UTC')) x,
			rate_limit_totals_of(NULL, x.turn, date_trunc('day', x.turn, 'UTC') + interval '24 h', each => true) t
	), spent AS NOT MATERIALIZED ( SELECT t.user_id, t.own, NOT t.own AND t.ancestors = '{}' AS top, t.model, t.requests,
			CASE WHEN t.remainder IS NULL THEN t.money ELSE t.money + t.remainder * 0.001 END AS money,
			t.estimated_money AS estimated, t.kind = 'correction' AS corrects,
			coalesce(t.turn, '-infinity') AS lo,
			coalesce(t.turn, to_timestamp((t.settled - date 'epoch') * float8 '86400')) AS hi
		FROM (SELECT t.*, NULL::timestamptz AS turn FROM rate_limit_totals t WHERE t.n > 0 AND t.day = ANY (ARRAY( SELECT l.day FROM span s, rate_limit_ledger_parts() l
				WHERE l.summed AND rate_limit_ledger_window(s.lo, s.hi) @> l.day))
			UNION ALL SELECT * FROM unsummed) t
	), sums AS MATERIALIZED ( SELECT each, name, own, bool_or(top) AS top, sum(requests) FILTER (WHERE this) AS requests,
			sum(money) FILTER (WHERE today) AS of_today, sum(money) FILTER (WHERE this) AS of_this,
			sum(CASE WHEN this THEN -money ELSE money END) FILTER (WHERE this <> before) AS of_before,
			sum(estimated) FILTER (WHERE this) AS estimated,
			sum(money) FILTER (WHERE this AND corrects) AS corrected
		FROM ( SELECT l.each, l.name, l.own, l.top, l.requests, l.money, l.estimated, l.corrects, l.today BETWEEN l.lo AND l.hi AS today, l.this BETWEEN l.lo AND l.hi AS this,
				l.before BETWEEN l.lo AND l.hi AS before
			FROM ( SELECT true AS each, s.user_id AS name, s.*, coalesce(o.today, (SELECT today FROM periods WHERE usual)) AS today, coalesce(o.this, (SELECT this FROM periods WHERE usual)) AS this,
					coalesce(o.before, (SELECT before FROM periods WHERE usual)) AS before
				FROM spent s LEFT JOIN own_periods o ON o.counted = s.user_id
				UNION ALL
				SELECT false, m.model, NULL, true, false, m.*, p.today, p.this, p.before
				FROM (SELECT model, sum(requests)::bigint, sum(money), sum(estimated), corrects, lo, hi FROM spent WHERE own GROUP BY model, corrects, lo, hi) m, periods p
				WHERE (p.unit, p.zone, p.day) = ('month', 'UTC', 1)) l OFFSET 0) l
		WHERE today OR this OR before GROUP BY 1, 2, 3
	), above AS ( SELECT name, bool_or(top) AS root FROM sums WHERE NOT own GROUP BY 1
	), listed AS MATERIALIZED ( SELECT CASE WHEN each THEN 'person' ELSE 'model' END AS list, name, requests, of_today, of_this,
			of_before, estimated, corrected, row_number() OVER () AS id FROM sums WHERE own
		UNION ALL
		SELECT CASE WHEN NOT each THEN 'all' WHEN root THEN 'organization' ELSE 'team' END, CASE WHEN each THEN name END, sum(requests), sum(of_today), sum(of_this), sum(of_before),
			sum(estimated), sum(corrected), -row_number() OVER ()
		FROM sums LEFT JOIN above USING (name) WHERE NOT each OR root IS NOT NULL GROUP BY 1, 2
	), shown AS MATERIALIZED ( SELECT s.* FROM unnest('{all,model,organization,team,person}'::text[]) l, LATERAL ( SELECT * FROM listed WHERE listed.list = l
			ORDER BY of_this DESC NULLS LAST, of_before DESC NULLS LAST, name LIMIT $1) s
	)
	SELECT list, CASE WHEN list IN ('all', 'model') THEN name ELSE coalesce(u.user_id, nullif(name, '')) END, others, f.requests::bigint,
		rate_limit_money(of_today), rate_limit_money(of_this), rate_limit_money(of_before),
		rate_limit_money(f.estimated), rate_limit_money(f.corrected)
	FROM (SELECT shown.*, NULL::bigint AS others FROM shown UNION ALL SELECT list, NULL, sum(requests), sum(of_today), sum(of_this), sum(of_before), sum(estimated),
			sum(corrected), NULL, count(*) FROM listed
		WHERE id NOT IN (SELECT id FROM shown) GROUP BY 1) f
		LEFT JOIN rate_limit_renamed() u ON u.counted = name
	ORDER BY list, others NULLS FIRST, of_this DESC NULLS LAST, of_before DESC NULLS LAST, f.name
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_corrections(max_rows bigint DEFAULT 50) RETURNS TABLE (at timestamptz, corrected_by text, reason text, model text, month timestamptz, requests bigint,
	money numeric, total bigint) LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT max(l.time), l.corrected_by, l.reason, l.model,
			date_trunc(''month'', l.corrects_time, ''UTC''), count(DISTINCT l.corrects),
			rate_limit_money(sum(l.money), sum(l.remainder)), count(*) OVER ()
		FROM (%s) l WHERE l.money <> 0 OR l.remainder <> 0
		GROUP BY l.day, 2, 3, 4, 5 ORDER BY 1 DESC, 2, 3, 4, 5 LIMIT $1',
		rate_limit_ledger_source(datemultirange(daterange((date_trunc('month', now() AT TIME ZONE 'UTC') - interval '1 month')::date, 'infinity')), 'AND corrects IS NOT NULL')) USING $1;
END $$;
--;
COMMENT ON FUNCTION rate_limit_spent IS 'What was spent today, in the billing period that is running (this_month) and in the one before it, in lists: all and model (NULL: none named), in days and months in UTC; organization (who is above others and below nobody), team (who is between) and person (who has sent requests; name NULL: unknown), each in its own periods. A list has the max_rows names with the most money of this_month, and then one row of all others; others is their number. requests, estimated, and corrected, which has what corrections changed, are of this_month. money NULL: nothing had a price.';
--;
COMMENT ON FUNCTION rate_limit_corrections IS 'The corrections of this month and the one before, in UTC, the latest first: the time of the last one, who has made them and why, the model and the month of the corrected requests, and how much more these cost. Corrections of one day are together, and total is the number of all rows.';
--;
CREATE OR REPLACE FUNCTION rate_limit_used_by(user_id text, key_id bigint DEFAULT NULL) RETURNS TABLE (rule text, limit_name text, key text, algorithm text, used numeric, held numeric,
	quota numeric, percent numeric, resets_at timestamptz, unit text, level text)
	LANGUAGE plpgsql STABLE ROWS 10 AS $$
DECLARE
	ids text[] := ARRAY[NULL::text]; -- the user and those above it
	keys text[] := ARRAY[coalesce((SELECT k.counted_as FROM rate_limit_api_keys k WHERE k.id = $2)::text, $2::text)]; -- the keys of their counters
BEGIN
	IF $2 IS NULL THEN
		SELECT array_agg(l.user_id ORDER BY l.place), array_agg(rate_limit_counter_key(l.counts) ORDER BY l.place) INTO ids, keys FROM rate_limit_lineage($1) l;
	END IF;
	RETURN QUERY SELECT u.*, nullif(ids[array_position(keys, d.part)], $1) FROM rate_limit_used u JOIN rate_limit_rules r ON r.name = u.rule JOIN LATERAL rate_limit_counted(r.count_by, u.key) d
			ON d.dimension = CASE WHEN $2 IS NULL THEN 'user' ELSE 'key' END AND d.part = ANY (keys)
		WHERE u.key = ANY (rate_limit_key_forms(keys))
		ORDER BY array_position(keys, d.part), u.rule, u.limit_name, u.key;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_recent(user_id text, key_id bigint DEFAULT NULL) RETURNS TABLE (today bigint, this_month bigint, limited bigint, blocked bigint, rejected bigint,
	last_request timestamptz, resets timestamptz) LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF rate_limit_may_read('metrics') THEN
		RETURN QUERY SELECT (SELECT coalesce(sum(t.requests), 0)::bigint FROM rate_limit_metrics_of(ARRAY[$1], d.starts, 'infinity') t WHERE $2 IS NULL OR t.key_id = $2),
			coalesce(sum(n.requests), 0)::bigint,
			coalesce(sum(n.limited), 0)::bigint, coalesce(sum(n.blocked), 0)::bigint,
			coalesce(sum(n.rejected), 0)::bigint,
			(SELECT max(m.last_request) FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = $1 AND ($2 IS NULL OR m.key_id = $2)),
			(SELECT max(u.resets_at) FROM rate_limit_used_by($1, $2) u)
		FROM rate_limit_billing(ARRAY[rate_limit_counted_user($1)]) b CROSS JOIN LATERAL rate_limit_calendar_periods('day', b.zone, 1, now(), now()) d
			CROSS JOIN LATERAL rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) p
			LEFT JOIN LATERAL rate_limit_metrics_of(ARRAY[$1], p.starts, 'infinity') n ON $2 IS NULL OR n.key_id = $2
		WHERE EXISTS (SELECT FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id > '')
		GROUP BY d.starts;
	END IF;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_changed WITH (security_invoker) AS SELECT c.seq, c.at, c.by, c.kind, c.ref, k.id AS key_id, c.before, c.after, CASE WHEN c.ref IS NULL AND num_nonnulls(c.before, c.after) = 0
			THEN '{"more than 1,000 rows, or all"}' WHEN num_nonnulls(c.before, c.after) = 0 THEN '{changed}' WHEN num_nonnulls(c.before, c.after) = 1 THEN ARRAY[CASE WHEN c.before IS NULL THEN 'created' ELSE 'deleted' END] || ARRAY(
				SELECT format('%s: %s', name, coalesce(m.after, m.before) ->> name) FROM unnest('{rule,limit_name,events,burst,valid}'::text[]) AS name WHERE c.kind = 'override' AND nullif(coalesce(c.after, c.before) ->> name, '(,)') IS NOT NULL)
			ELSE ARRAY(SELECT format('%s: %s -> %s', a.key, m.before -> a.key, a.value) FROM jsonb_each(m.after) a WHERE a.value IS DISTINCT FROM m.before -> a.key AND a.key <> 'updated_at' ORDER BY a.key COLLATE "C") END AS what,
		CASE WHEN c.ref IS NULL THEN 'all' WHEN k.id IS NOT NULL THEN CASE c.kind WHEN 'key' THEN '' ELSE 'key/' END || k.id ELSE regexp_replace(c.ref, '(^|/)([0-9a-f]{12})[0-9a-f]{52}$', '\1\2...') END AS which FROM rate_limit_changes c,
		LATERAL (SELECT (coalesce(c.after, c.before) ->> CASE c.kind WHEN 'key' THEN 'id' ELSE 'key_id' END)::bigint AS id) k, LATERAL (SELECT CASE c.kind WHEN 'override' THEN (SELECT l.unit FROM rate_limit_rule_limits l
			WHERE (l.rule, l.name) = (coalesce(c.after, c.before) ->> 'rule', coalesce(c.after, c.before) ->> 'limit_name')) END AS unit) u, LATERAL (SELECT rate_limit_policy_amount(c.before, coalesce(c.before ->> 'unit', u.unit) = 'money',
			false) AS before, rate_limit_policy_amount(c.after, coalesce(c.after ->> 'unit', u.unit) = 'money', false) AS after) m;
--;
COMMENT ON FUNCTION rate_limit_used_by IS 'The rows of rate_limit_used that count a user, or one of its API keys, and then the rows that count the users above it, which level names.';
--;
COMMENT ON FUNCTION rate_limit_recent IS 'The recent requests of a user or of one of its API keys: of today, and (this_month) of the user''s billing period that is running, by rate_limit_metrics_of. limited, blocked and rejected are refused requests of this_month. resets is the latest resets_at in rate_limit_used_by. No row: no usage was recorded, or the role may not read it.';
--;
COMMENT ON VIEW rate_limit_changed IS 'The changes of the policy as text.';
--;
COMMENT ON COLUMN rate_limit_changed.key_id IS 'The id of the API key that was changed, or that has the changed override or ban. NULL: another change.';
--;
COMMENT ON COLUMN rate_limit_changed.which IS 'ref for display: all for NULL, and for an API key its id, or the start of its digest if the row is too old to have the id.';
--;
COMMENT ON COLUMN rate_limit_changed.what IS 'created or deleted, with the rule, limit and amounts of an override; changed; or the columns that differ. An amount of money is a decimal number.';
--;
CREATE OR REPLACE FUNCTION rate_limit_tier(tier text, rank bigint DEFAULT NULL, comment text DEFAULT NULL, reset text[] DEFAULT NULL) RETURNS text LANGUAGE sql
	AS $$ SELECT rate_limit_set('rate_limit_tiers', '{tier}', to_jsonb(f), reset)
		FROM (SELECT tier, rank, comment) AS f $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_tier(tier text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF $1 = 'anonymous' THEN
		RAISE EXCEPTION 'tier: %: must stay: it is the tier of requests without a user', to_json($1) USING ERRCODE = 'check_violation';
	END IF;
	PERFORM FROM rate_limit_tiers t WHERE t.tier = $1 FOR UPDATE;
	PERFORM rate_limit_refuse('tier: ' || to_json($1) || ': is used by ' || string_agg(u.what, ', ' ORDER BY u.place, u.what) || ': change or delete these first, or see: pg-ratelimit tiers rename',
		'foreign_key_violation') FROM (
		SELECT u.place, u.n || ' ' || u.what || CASE u.n WHEN 1 THEN '' ELSE 's' END AS what
		FROM (VALUES (1, 'user', (SELECT count(*) FROM rate_limit_users o WHERE o.tier = $1)), (2, 'API key', (SELECT count(*) FROM rate_limit_api_keys o WHERE o.tier = $1)),
			(3, 'override', (SELECT count(*) FROM rate_limit_overrides o WHERE o.tier = $1))) AS u(place, what, n) WHERE u.n > 0
		UNION ALL SELECT 4, format('the rule "%s"', r.name) FROM rate_limit_rules r WHERE $1 = ANY (r.tiers)) AS u;
	DELETE FROM rate_limit_tiers t WHERE t.tier = $1;
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_tier_states WITH (security_invoker) AS SELECT t.tier, t.rank, (SELECT count(*) FROM rate_limit_users u WHERE u.tier = t.tier) AS users,
		(SELECT count(*) FROM rate_limit_api_keys k WHERE k.tier = t.tier) AS keys, ARRAY(SELECT r.name FROM rate_limit_rules r WHERE t.tier = ANY (r.tiers) ORDER BY r.name) AS rules, t.comment,
		CASE WHEN n.users = 1 THEN '{no rule limits its user}' WHEN n.users > 1 THEN ARRAY[format('no rule limits its %s users', n.users)] END AS problems FROM rate_limit_tiers t LEFT JOIN rate_limit_unlimited() n ON n.tier = t.tier;
--;
CREATE OR REPLACE FUNCTION rate_limit_set_overrides(made text, overrides text[], user_id text, key_id bigint
	DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	o record;
BEGIN
	FOR o IN SELECT f AS text, m[1] AS rule, m[2] AS name, m[3] AS burst, m[4] AS amount FROM unnest(overrides) AS f LEFT JOIN LATERAL regexp_match(f,
			'^([^/=]+)/([^=]+?)(?:[.]burst=(\d{0,18})|=([\d.]*|unlimited))$') AS m ON true
	LOOP
		IF o.rule IS NULL THEN
			RAISE EXCEPTION 'overrides: %: must be as in free/per_hour=5000, free/per_hour=unlimited or free/per_hour.burst=20', to_json(o.text) USING ERRCODE = 'invalid_parameter_value';
		ELSIF o.amount IS DISTINCT FROM '' THEN
			PERFORM rate_limit_override(o.rule, o.name, o.amount, NULL, $3, $4, nullif(o.burst, '')::bigint, reset => CASE o.burst WHEN '' THEN '{burst}' END::text[]);
		ELSIF NOT rate_limit_delete_override(o.rule, o.name, NULL, $3, $4) AND NOT EXISTS (SELECT FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = (o.rule, o.name))
		THEN
			RAISE EXCEPTION '%/%: no such limit', o.rule, o.name USING ERRCODE = 'no_data_found';
		END IF;
	END LOOP;
	RETURN made;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_user(user_id text, tier text DEFAULT NULL, tier_until timestamptz DEFAULT NULL, period_start date DEFAULT NULL, time_zone text DEFAULT NULL,
	comment text DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL, parent text DEFAULT NULL) RETURNS text
	LANGUAGE sql AS $$ SELECT rate_limit_set_overrides(rate_limit_set('rate_limit_users', '{user_id}',
			to_jsonb(f), reset), overrides, user_id)
		FROM (SELECT user_id, tier, tier_until, period_start, time_zone, comment, parent) AS f $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_refuse_parent(user_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse(format('user: %s: must not be the parent of other users: give these %s another parent first', to_json($1), count(*)), 'foreign_key_violation')
		FROM rate_limit_users u WHERE u.parent = $1 HAVING count(*) > 0;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_user(user_id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse_parent($1);
	DELETE FROM rate_limit_users u WHERE u.user_id = $1;
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_user_states WITH (security_invoker) AS SELECT u.user_id, u.tier, CASE WHEN EXISTS (SELECT FROM rate_limit_lineage(u.user_id) l
		JOIN rate_limit_bans b ON b.user_id = l.user_id AND b.until > now()) THEN 'banned' WHEN EXISTS (SELECT FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND o.events = 0
			AND o.valid @> now()) THEN 'blocked' ELSE 'active' END AS state, u.parent, u.tier_until, u.period_start, u.time_zone, u.comment, u.counted_as, u.created_at, u.updated_at FROM rate_limit_users u;
--;
CREATE OR REPLACE FUNCTION rate_limit_key(id bigint, tier text DEFAULT NULL, name text DEFAULT NULL, expires_at timestamptz DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	END IF;
	RETURN rate_limit_set_overrides(rate_limit_set('rate_limit_api_keys', '{id}', jsonb_build_object('id', $1, 'tier', $2, 'name', $3, 'expires_at', $4, 'revoked_at', NULL, 'revoked_by', NULL),
		CASE WHEN 'revoked_at' = ANY ($6) THEN $6 || '{revoked_by}' ELSE $6 END), $5, NULL, $1);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_revoke_key(key_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE rate_limit_api_keys k SET revoked_at = now(), revoked_by = session_user WHERE k.id = $1 AND (k.revoked_at IS NULL OR k.revoked_at > now());
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_rotate_key(key_id bigint, grace interval, digest bytea, hint text DEFAULT NULL) RETURNS TABLE (id bigint, replaces bigint, replaced_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	old rate_limit_api_keys;
BEGIN
	SELECT k.* INTO old FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF ($2 BETWEEN '0' AND '36525 days') IS NOT TRUE THEN
		RAISE EXCEPTION 'grace: %: must be 0 to 36525 days', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	ELSIF (octet_length($3) = 32) IS NOT TRUE THEN
		RAISE invalid_parameter_value USING MESSAGE = format('digest: %s bytes: must be a sha256 of 32 bytes', coalesce(octet_length($3), 0));
	ELSIF old.id IS NULL THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	ELSIF old.replaced_by IS NOT NULL THEN
		RAISE EXCEPTION 'key: %: was already replaced by the key %', $1, old.replaced_by USING ERRCODE = 'object_not_in_prerequisite_state';
	ELSIF least(old.revoked_at, old.expires_at) <= now() THEN
		RAISE EXCEPTION 'key: %: is %: to make a new key, run: pg-ratelimit keys create', $1, CASE WHEN old.revoked_at <= now() THEN 'revoked' ELSE 'expired' END
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	INSERT INTO rate_limit_api_keys AS k (digest, hint, user_id, name, expires_at, tier, counted_as) VALUES ($3, $4, old.user_id, old.name, old.expires_at, old.tier, coalesce(old.counted_as, old.id))
		RETURNING k.id, $1 INTO id, replaces;
	INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, burst, valid, reason) SELECT o.rule, o.limit_name, rate_limit_rotate_key.id, o.events, o.burst, o.valid, o.reason
			FROM rate_limit_overrides o WHERE o.key_id = $1;
	INSERT INTO rate_limit_bans (key_id, until, reason, banned_at, banned_by) SELECT rate_limit_rotate_key.id, b.until, b.reason, b.banned_at, b.banned_by FROM rate_limit_bans b WHERE b.key_id = $1;
	UPDATE rate_limit_api_keys k SET revoked_at = least(k.revoked_at, now() + $2), revoked_by = session_user, replaced_by = rate_limit_rotate_key.id WHERE k.id = $1
		RETURNING least(k.revoked_at, k.expires_at) INTO replaced_at;
	RETURN NEXT;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_key_states WITH (security_invoker) AS SELECT k.id, k.hint, k.name, k.user_id, k.tier, CASE WHEN k.revoked_at <= now() THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired'
		WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.key_id = k.id AND b.until > now()) OR EXISTS (SELECT FROM rate_limit_lineage(k.user_id) l JOIN rate_limit_bans b ON b.user_id = l.user_id AND b.until > now())
			THEN 'banned' ELSE 'valid' END AS state, k.expires_at, k.revoked_at, k.revoked_by, k.replaced_by, k.created_at FROM rate_limit_api_keys k;
--;
COMMENT ON TABLE rate_limit_tiers IS 'The plans that users can be on, such as free and pro.';
--;
COMMENT ON COLUMN rate_limit_tiers.tier IS 'The name, as in rate_limit_rules.tiers.';
--;
COMMENT ON COLUMN rate_limit_tiers.rank IS 'The order of tiers in lists, lowest first. It has no effect on requests.';
--;
COMMENT ON COLUMN rate_limit_tiers.comment IS 'A note. Proxies ignore it.';
--;
COMMENT ON FUNCTION rate_limit_tier IS 'Creates or changes a tier.';
--;
COMMENT ON FUNCTION rate_limit_delete_tier IS 'Deletes an unused tier, and returns whether it existed. It fails if the tier is used.';
--;
COMMENT ON VIEW rate_limit_tier_states IS 'The tiers with their users, API keys and rules.';
--;
COMMENT ON COLUMN rate_limit_tier_states.users IS 'The number of users on the tier.';
--;
COMMENT ON COLUMN rate_limit_tier_states.keys IS 'The number of API keys with this tier of their own.';
--;
COMMENT ON COLUMN rate_limit_tier_states.rules IS 'The rules for the tier, including rules that are for other tiers, too.';
--;
COMMENT ON COLUMN rate_limit_tier_states.problems IS 'That no rule limits its users, as in rate_limit_unlimited.';
--;
COMMENT ON TABLE rate_limit_users IS 'The users of the API, each on one tier.';
--;
COMMENT ON COLUMN rate_limit_users.user_id IS 'The user''s name in the application or the proxy. Limits by user count by it.';
--;
COMMENT ON COLUMN rate_limit_users.tier IS 'The tier until tier_until.';
--;
COMMENT ON COLUMN rate_limit_users.tier_until IS 'When the tier ends. Then the user has the tier anonymous. infinity: never.';
--;
COMMENT ON COLUMN rate_limit_users.period_start IS 'A day on which a month of the invoice starts. In limits that count by user or key, the user''s months and years start on this day, too. NULL: calendar months and years.';
--;
COMMENT ON COLUMN rate_limit_users.time_zone IS 'The IANA name of the time zone in which the months of the invoice start at midnight: UTC or a place. A link such as US/Eastern becomes its target. UTC without period_start: see rate_limit_billing.';
--;
COMMENT ON COLUMN rate_limit_users.comment IS 'A note. Proxies ignore it.';
--;
COMMENT ON COLUMN rate_limit_users.created_at IS 'When the row was created.';
--;
COMMENT ON COLUMN rate_limit_users.updated_at IS 'When the row was last changed.';
--;
COMMENT ON COLUMN rate_limit_users.parent IS 'The user above, such as a team or an organization. Its limits by user apply to the requests of all users below it, too. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_users.parent_level IS 'The level of the parent. The database sets it.';
--;
COMMENT ON COLUMN rate_limit_users.level IS '1 without a parent, and otherwise one more than the parent''s, at most 4. The database sets it.';
--;
COMMENT ON COLUMN rate_limit_users.counted_as IS 'The first name of a renamed user, by which it counts and is in the ledger. A new user with a name by which another one counts gets another name here. NULL: the user counts by its name.';
--;
COMMENT ON FUNCTION rate_limit_set_overrides IS 'Sets the overrides of a user or an API key, as rate_limit_user does with its argument overrides. Returns made.';
--;
COMMENT ON FUNCTION rate_limit_user IS 'Creates or changes a user. A new user needs a tier. overrides are as in free/per_hour=5000, free/per_hour=unlimited and free/per_hour.burst=20. Without a value, as in free/per_hour=, the override is deleted.';
--;
COMMENT ON FUNCTION rate_limit_refuse_parent IS 'Fails if a user is the parent of others.';
--;
COMMENT ON FUNCTION rate_limit_delete_user IS 'Deletes a user with its API keys, their bans, and its overrides, and returns whether it existed. It fails if the user is the parent of others.';
--;
COMMENT ON VIEW rate_limit_user_states IS 'The users and their states.';
--;
COMMENT ON COLUMN rate_limit_user_states.state IS 'banned, also as one of the users above it is; blocked: an override of 0 refuses the user; or active.';
--;
COMMENT ON TABLE rate_limit_api_keys IS 'The API keys of users. Only the digests of keys are stored.';
--;
COMMENT ON COLUMN rate_limit_api_keys.id IS 'The number of the key. Limits that count by key count by it, unless counted_as is given.';
--;
COMMENT ON COLUMN rate_limit_api_keys.digest IS 'The SHA-256 of the whole key: sha256(convert_to(''the key'', ''UTF8'')). If a key of your own begins with prl_, proxies refuse it, because it lacks the checksum of keys create.';
--;
COMMENT ON COLUMN rate_limit_api_keys.hint IS 'The first characters of the key, to recognize it.';
--;
COMMENT ON COLUMN rate_limit_api_keys.name IS 'The purpose of the key.';
--;
COMMENT ON COLUMN rate_limit_api_keys.user_id IS 'The user of the key. All keys of a user share the limits that count by user.';
--;
COMMENT ON COLUMN rate_limit_api_keys.expires_at IS 'When the key expires. infinity: never.';
--;
COMMENT ON COLUMN rate_limit_api_keys.revoked_at IS 'When the key is revoked, possibly in the future. NULL: it is not revoked.';
--;
COMMENT ON COLUMN rate_limit_api_keys.revoked_by IS 'The role or the person that revoked the key.';
--;
COMMENT ON COLUMN rate_limit_api_keys.replaced_by IS 'The key that replaced this key.';
--;
COMMENT ON COLUMN rate_limit_api_keys.counted_as IS 'The key with which this key shares its counters in limits that count by key: the first of the keys that replaced each other. NULL: the key has its own counters.';
--;
COMMENT ON COLUMN rate_limit_api_keys.created_at IS 'When the row was created.';
--;
COMMENT ON COLUMN rate_limit_api_keys.tier IS 'The tier of requests with the key. NULL: the user''s tier.';
--;
COMMENT ON FUNCTION rate_limit_key IS 'Changes an API key. overrides are as in rate_limit_user. reset => ''{revoked_at}'' restores a revoked key.';
--;
COMMENT ON FUNCTION rate_limit_revoke_key IS 'Revokes an API key now. Returns false if the key was revoked before, or does not exist.';
--;
COMMENT ON FUNCTION rate_limit_rotate_key IS 'Creates an API key in place of a valid one, with its name, tier, end, counters, overrides and bans. The old key ends after the grace. digest is the SHA-256 of the new key, and hint its first characters.';
--;
COMMENT ON VIEW rate_limit_key_states IS 'The API keys, without their digests, and their states.';
--;
COMMENT ON COLUMN rate_limit_key_states.state IS 'valid, expired, revoked, or banned: the key, its user, or a user above it is banned.';
--;
CREATE OR REPLACE FUNCTION rate_limit_conditions(r rate_limit_rules) RETURNS jsonb LANGUAGE sql STABLE RETURN jsonb_strip_nulls(jsonb_build_object('hosts', r.hosts, 'paths', r.paths, 'methods', r.methods, 'networks', r.networks));
--;
CREATE OR REPLACE FUNCTION rate_limit_rule( name text, family text DEFAULT NULL, priority bigint DEFAULT NULL, mode text DEFAULT NULL, action text DEFAULT NULL,
	tiers text[] DEFAULT NULL, hosts text[] DEFAULT NULL, paths text[] DEFAULT NULL, methods text[] DEFAULT NULL, networks cidr[] DEFAULT NULL, count_by text[] DEFAULT NULL, algorithm text DEFAULT NULL,
	per_second bigint DEFAULT NULL, per_minute bigint DEFAULT NULL, per_hour bigint DEFAULT NULL, per_day bigint DEFAULT NULL, per_month bigint DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL, on_exceed text DEFAULT NULL,
	valid tstzrange DEFAULT NULL, cost bigint DEFAULT NULL, status int DEFAULT NULL, message text DEFAULT NULL, retry_after interval DEFAULT NULL, comment text DEFAULT NULL,
	without_header text DEFAULT NULL, settle text DEFAULT NULL, in_flight bigint DEFAULT NULL, limits text[] DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	windows CONSTANT jsonb := '{"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "24h",
		"per_month": "1mo calendar", "in_flight": "in_flight"}';
	amounts CONSTANT jsonb := (SELECT jsonb_strip_nulls(to_jsonb(a)) FROM (SELECT per_second, per_minute, per_hour, per_day, per_month, in_flight) AS a);
	resets CONSTANT text[] := coalesce(reset, '{}');
	limit_names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(windows)) || '{burst,durable,on_exceed,notify}';
	result text;
BEGIN
	PERFORM rate_limit_refuse('tiers: ' || string_agg(quote_literal(t), ', ') || ': must be in rate_limit_tiers, which has ' || (SELECT coalesce(string_agg(quote_literal(k.tier), ', '
				ORDER BY k.rank, k.tier), 'none') FROM rate_limit_tiers k))
		FROM unnest(tiers) AS t WHERE t NOT IN (SELECT k.tier FROM rate_limit_tiers k);
	PERFORM rate_limit_refuse(string_agg(a.key || ': ' || a.value, ', ') || ': must be null or 0 to 9007199254740992')
		FROM jsonb_each_text(amounts) AS a WHERE a.value::bigint NOT BETWEEN 0 AND 9007199254740992;
	result := rate_limit_set('rate_limit_rules', '{name}', (SELECT jsonb_object_agg(f, NULL) FROM unnest(limit_names) AS f) || (SELECT to_jsonb(r) FROM (SELECT name, family, priority, mode,
			action, tiers, hosts, paths, methods, networks, count_by, valid, cost, status, message,
			retry_after, comment, without_header, settle) AS r),
		ARRAY(SELECT n FROM unnest(resets) AS n WHERE n <> ALL (limit_names) OR n IS NULL));
	PERFORM CASE WHEN f.l ~ '^[^=]+=$' THEN rate_limit_delete_limit(name, rtrim(f.l, '='))::text ELSE rate_limit_limit(name, split_part(f.l, '=', 1), coalesce(substring(f.l FROM '=(.*)$'), ''),
			algorithm, CASE WHEN f.l !~ '=.*(calendar|in_flight)' THEN burst END, durable,
			CASE WHEN f.l !~ '=.*in_flight' THEN on_exceed END) END
		FROM (SELECT unnest(limits) UNION ALL SELECT concat(a.key, '=', a.value, '/', windows ->> a.key) FROM jsonb_each_text(amounts) AS a
			WHERE a.key NOT IN (SELECT l.name FROM rate_limit_rule_limits l WHERE l.rule = name)) AS f(l);
	PERFORM rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', name, 'name', l.name, 'events', rate_limit_units(amounts ->> l.name, l.unit), 'durable', durable,
			'algorithm', CASE WHEN l.per IS NOT NULL THEN algorithm END,
			'burst', CASE WHEN l.per IS NOT NULL THEN burst END,
			'on_exceed', CASE WHEN l.algorithm <> 'in_flight' THEN on_exceed END,
			'notify', CASE WHEN coalesce(algorithm, l.algorithm) = 'fixed_window' THEN notify END),
			ARRAY(SELECT n FROM unnest(resets) AS n WHERE n IN ('burst', 'durable', 'on_exceed', 'notify')))
		FROM rate_limit_rule_limits l WHERE l.rule = name AND (amounts ? l.name OR resets && '{burst,durable,on_exceed,notify}' OR num_nonnulls(algorithm, burst, durable, on_exceed, notify) > 0);
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = name AND l.name = ANY (resets) AND windows ? l.name AND NOT amounts ? l.name;
	PERFORM rate_limit_complete(name); -- now, and not at the end of the transaction
	PERFORM rate_limit_refuse(format('%s: %s: the rule has no limit%s', g.field, g.value, g.place)) FROM (VALUES ('algorithm', to_json(algorithm), ' with a window'),
			('burst', to_json(burst), ' with a window'),
			('on_exceed', to_json(on_exceed), ' with a window or a calendar'),
			('notify', to_json(notify), ' with a fixed window or a calendar'),
			('durable', CASE WHEN durable THEN to_json(durable) END, '')) AS g(field, value, place)
		WHERE NOT EXISTS (SELECT FROM rate_limit_rule_limits l WHERE l.rule = name AND to_jsonb(l) -> g.field = g.value::jsonb) AND g.value IS NOT NULL;
	RETURN result;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_limit(rule text, name text, amount text DEFAULT NULL, algorithm text DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL,
	on_exceed text DEFAULT NULL, output bigint DEFAULT NULL, fields boolean DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL, batches text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	part CONSTANT text[] := regexp_match($3, '^\s*(unlimited|\d{1,18}|\d+[.]\d+)(?:\s+([a-z_]+))?\s*/\s*' || '(?:(in_flight)|1?(day|d|week|w|month|mo|year|y) calendar(?: (\S+))?'
		|| '|((?:\d{0,8}(?:w|d|h|m|s|ms|us))+))\s*$');
	old rate_limit_rule_limits;
	law text;
	kind text;
BEGIN
	IF $3 IS NOT NULL AND part IS NULL THEN
		RAISE EXCEPTION 'amount of %/%: %: must be %', $1, $2, to_json($3), CASE WHEN $3 ~ '/\s*\d*\s*(mo|months?|y|years?)\s*$'
				THEN 'with calendar, as in 5 money/1mo calendar: months and years differ in length'
			ELSE 'EVENTS/WINDOW, as in 100/10s, 5000 tokens/1m, 0.50 money/24h, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight' END
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO old FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR UPDATE;
	kind := coalesce(part[2], CASE WHEN part[1] <> 'unlimited' THEN 'requests' END, old.unit);
	SELECT CASE WHEN part[3] IS NOT NULL THEN 'in_flight' WHEN part[4] IS NOT NULL THEN 'fixed_window' ELSE coalesce($4, CASE WHEN old.per IS NOT NULL THEN old.algorithm END, CASE
			WHEN part IS NOT NULL THEN
			coalesce((SELECT min(l.algorithm) FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.per IS NOT NULL HAVING count(DISTINCT l.algorithm) = 1), 'sliding_window') END) END INTO law;
	RETURN rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', $1, 'name', $2, 'events', CASE WHEN part[1] <> 'unlimited' THEN rate_limit_units(part[1], kind) END,
		'calendar', CASE left(part[4], 1) WHEN 'd' THEN 'day' WHEN 'w' THEN 'week' WHEN 'm' THEN 'month' WHEN 'y' THEN 'year' END, 'time_zone', part[5],
		'per', regexp_replace(part[6], '^(?=[a-z])', '1')::interval, 'algorithm', law, 'burst', $5,
		'durable', $6, 'on_exceed', $7, 'unit', kind, 'output', $8, 'fields', $9, 'notify', $11,
		'batches', $12),
		$10 || CASE WHEN part IS NOT NULL THEN ARRAY(SELECT f FROM unnest(ARRAY['events', 'calendar', 'time_zone', 'per', 'burst', 'output', 'batches'],
				ARRAY[nullif(part[1], 'unlimited'), part[4], part[5], part[6],
				coalesce($5::text, part[6]), coalesce($8::text, nullif(kind, 'requests')),
				coalesce($12, nullif(kind, 'requests'))]) AS n(f, v)
				WHERE v IS NULL AND f <> ALL (coalesce($10, '{}'))) END);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_rule(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rules r WHERE r.name = $1;
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_delete_limit(rule text, name text) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.name = $2;
	RETURN FOUND;
END $$;
--;
CREATE OR REPLACE VIEW rate_limit_rule_states WITH (security_invoker) AS SELECT r.name, r.action, r.family, r.priority, r.mode, r.mode <> 'off' AND r.valid @> now() AS in_force,
		r.tiers, r.hosts, r.paths, r.methods, r.networks, nullif(r.valid, '(,)') AS valid, CASE r.action WHEN 'limit' THEN r.count_by END AS count_by, nullif(r.without_header, 'share') AS without_header, (SELECT string_agg(concat_ws(' ', l.name,
			coalesce(rate_limit_readable(rate_limit_decimal(l.events, l.unit)), 'unlimited') || coalesce(' ' || nullif(l.unit, 'requests'), '') || coalesce('/' || coalesce(rate_limit_span(l.per), l.calendar), ''), l.algorithm, l.time_zone,
			'burst ' || l.burst, CASE WHEN l.durable AND l.unit = 'requests' THEN 'durable' WHEN NOT l.durable AND l.unit <> 'requests' THEN 'durable off' END, nullif(l.on_exceed, 'refuse'),
			'output ' || l.output, 'batches ' || nullif(l.batches, 'refuse'), 'notify ' || array_to_string(l.notify, ','), CASE WHEN NOT l.fields THEN 'fields off' END), '; '
			ORDER BY l.per NULLS LAST, l.name) FROM rate_limit_rule_limits l WHERE l.rule = r.name) AS limits, nullif(r.cost, 1) AS cost, r.settle, r.status, r.message, r.retry_after, r.comment,
		(SELECT array_agg(w.warning ORDER BY w.warning) FROM rate_limit_rule_warnings w WHERE w.rule = r.name) AS problems, r.counted_as FROM rate_limit_rules r
	ORDER BY CASE r.action WHEN 'exempt' THEN 1 WHEN 'block' THEN 2 ELSE 3 END, r.priority DESC, r.name;
--;
COMMENT ON TABLE rate_limit_rules IS 'Rules that limit, block or exempt requests. A rule matches a request if all its conditions hold. A condition that is NULL always holds.';
--;
COMMENT ON COLUMN rate_limit_rules.name IS 'The name.';
--;
COMMENT ON COLUMN rate_limit_rules.family IS 'Within a family, only the matching rule with the highest priority applies. NULL: no family.';
--;
COMMENT ON COLUMN rate_limit_rules.priority IS 'The order of rules, highest first.';
--;
COMMENT ON COLUMN rate_limit_rules.mode IS 'enforce; shadow: the rule counts and reports but refuses nothing; off: the rule is ignored.';
--;
COMMENT ON COLUMN rate_limit_rules.action IS 'limit: the limits of the rule apply; block: requests are refused; exempt: no limits of rules apply to requests.';
--;
COMMENT ON COLUMN rate_limit_rules.hosts IS 'Host names without a port. *.example.com matches every name below example.com.';
--;
COMMENT ON COLUMN rate_limit_rules.paths IS 'Paths that start with a slash. * matches one segment; a final * matches the rest: /api/* matches /api/a/b.';
--;
COMMENT ON COLUMN rate_limit_rules.methods IS 'Methods, such as GET.';
--;
COMMENT ON COLUMN rate_limit_rules.networks IS 'Networks that contain the client''s address. An unknown address is in none, except that for limit and block it is in {0.0.0.0/0,::/0}.';
--;
COMMENT ON COLUMN rate_limit_rules.tiers IS 'The user''s tier must be one of these.';
--;
COMMENT ON COLUMN rate_limit_rules.count_by IS 'What each counter counts: a combination of user, key, tier, ip, ip/128, host, route and header:NAME. ip: an IPv4 address, or the /64 network of an IPv6 address; ip/128: each IPv6 address. Alternatives such as user|ip use the first that the request has. all: one counter for all requests.';
--;
COMMENT ON COLUMN rate_limit_rules.without_header IS 'For header:NAME in count_by. share: all requests with a missing or empty header share one counter; skip: the rule does not match them; refuse: they are refused with 401. With share and refuse, a CORS preflight without the header counts by its client.';
--;
COMMENT ON COLUMN rate_limit_rules.valid IS 'When the rule applies.';
--;
COMMENT ON COLUMN rate_limit_rules.cost IS 'The units that a request charges to each limit of requests.';
--;
COMMENT ON COLUMN rate_limit_rules.settle IS 'How to read the actual cost from the response: header X-Tokens, bytes, json usage.total_tokens, or status 401 403 = 1, else 0. NULL: the actual cost is cost.';
--;
COMMENT ON COLUMN rate_limit_rules.status IS 'The HTTP status of a refusal, from 400 to 599. NULL: 429 for limits, 403 for a block.';
--;
COMMENT ON COLUMN rate_limit_rules.message IS 'The text of a refusal. NULL: the proxy''s text.';
--;
COMMENT ON COLUMN rate_limit_rules.retry_after IS 'The Retry-After of a refusal. NULL: for limits, the time until the request would pass; for a block, none.';
--;
COMMENT ON COLUMN rate_limit_rules.comment IS 'A note. Proxies ignore it.';
--;
COMMENT ON COLUMN rate_limit_rules.created_at IS 'When the row was created.';
--;
COMMENT ON COLUMN rate_limit_rules.created_by IS 'The role that created the row.';
--;
COMMENT ON COLUMN rate_limit_rules.updated_at IS 'When the row was last changed. Changes of its limits are in rate_limit_changes only.';
--;
COMMENT ON COLUMN rate_limit_rules.counted_as IS 'The first name of a renamed rule, by which the rule counts, so that it keeps its counters. A new rule with a name by which another rule counts gets another one here. NULL: the rule counts by its name.';
--;
COMMENT ON FUNCTION rate_limit_conditions IS 'The conditions of a rule besides its tiers and times.';
--;
COMMENT ON FUNCTION rate_limit_rule IS 'Creates or changes a rule with its limits. limits are limits with any window, as in short=50/10s or tpm=5000 tokens/1m, or short= to delete one. reset also deletes limits by their names. Returns created or changed.';
--;
COMMENT ON TABLE rate_limit_rule_limits IS 'The limits of rules. A request passes only if all limits of its rules admit it.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.rule IS 'The name of the rule.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.name IS 'The name of the limit, unique within the rule, such as per_hour. The prefix of the counters is rule/, the rule''s counted_as or name, a slash, and the limit''s counted_as or name.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.algorithm IS 'sliding_window, fixed_window, token_bucket, sliding_log, gcra or in_flight.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.events IS 'The quota per window, in millionths for money. For in_flight: the number of concurrent requests. 0: nothing passes. NULL: the limit applies only where an override has an amount.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.per IS 'The length of the window. A day is 24 hours. NULL with calendar, and for in_flight.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.calendar IS 'In place of per: day, week, month or year of the calendar. For users with a period_start, months and years start on that day.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.time_zone IS 'The IANA name of the calendar''s time zone, as for users. NULL: UTC. Users with a period_start use their own time zone.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.burst IS 'The capacity of a token_bucket, or the largest burst that gcra allows. NULL: events. A token_bucket with a burst below events refills evenly.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.durable IS 'true: the counts survive a crash of the server. NULL: true with a unit of tokens, else false.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.on_exceed IS 'refuse; overage: requests beyond the quota pass, are counted, and have a mark in their responses.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.unit IS 'What is counted: requests, or tokens of language models, which responses report: tokens, input_tokens (from a cache or not), or output_tokens; or money, by the prices of rate_limit_prices.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.output IS 'The tokens of output that a request holds until its response has ended if it names no maximum, with a unit of tokens or money. NULL: 4096.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.batches IS 'refuse: with a unit of tokens or money, requests for batches are refused, because their answers come later; pass: they pass, and cost nothing.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.fields IS 'false: neither fields of responses nor bodies say what is left.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.notify IS 'Percentages of the quota. A counter that reaches one in a window gets a row in rate_limit_notices.';
--;
COMMENT ON COLUMN rate_limit_rule_limits.counted_as IS 'The name by which the limit counts since its unit changed, so that no unit has the counts of another. NULL: the limit counts by its name.';
--;
COMMENT ON FUNCTION rate_limit_limit IS 'Creates or changes a limit of a rule, with any window. The amount is as in 50/10s, 5000 tokens/1m, 50 money/1mo calendar, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight. It sets the unit, the window, the calendar and the time zone, too.';
--;
COMMENT ON FUNCTION rate_limit_delete_rule IS 'Deletes a rule with its limits and overrides, and returns whether it existed.';
--;
COMMENT ON FUNCTION rate_limit_delete_limit IS 'Deletes a limit with its overrides, and returns whether it existed. A rule with the action limit must keep at least one limit.';
--;
COMMENT ON VIEW rate_limit_rule_states IS 'The rules in the order in which proxies try them, with their limits as text. Defaults are NULL.';
--;
COMMENT ON COLUMN rate_limit_rule_states.in_force IS 'Whether the rule applies now.';
--;
COMMENT ON COLUMN rate_limit_rule_states.limits IS 'Each limit as text: its name, events and window, algorithm, and all values that are not defaults.';
--;
COMMENT ON COLUMN rate_limit_rule_states.problems IS 'The warnings of rate_limit_rule_warnings.';
--;
CREATE OR REPLACE VIEW rate_limit_policy_columns WITH (security_invoker) AS SELECT s.place, s.section, s.relation, a.attnum AS position, a.attname::text AS name,
		format_type(a.atttypid, a.atttypmod) AS type, d.value AS default_value, array_position(s.keys, a.attname::text) AS key, a.attnotnull AND d.value IS NULL OR a.attname = 'events' AS needed,
		EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'f' AND c.conkey = ARRAY[a.attnum] AND c.confrelid = 'rate_limit_api_keys'::regclass) AS is_reference, col_description(a.attrelid, a.attnum) AS description
	FROM (VALUES (1, 'tiers', 'rate_limit_tiers'::regclass, '{tier}'::text[]), (2, 'users', 'rate_limit_users', '{user_id}'), (3, 'keys', 'rate_limit_api_keys', '{digest}'),
		(4, 'rules', 'rate_limit_rules', '{name}'), (5, 'limits', 'rate_limit_rule_limits', '{rule,name}'), (6, 'overrides', 'rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}'),
		(7, 'prices', 'rate_limit_prices', '{model,valid}') ) AS s(place, section, relation, keys) JOIN pg_attribute a ON a.attrelid = s.relation AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN LATERAL (SELECT pg_get_expr(v.adbin, v.adrelid) FROM pg_attrdef v WHERE (v.adrelid, v.adnum) = (a.attrelid, a.attnum)) AS d(value) ON true WHERE (s.section, a.attname) <> ('limits', 'counted_as')
		AND a.attidentity = '' AND a.attgenerated = '' AND a.attname NOT IN ('parent_level', 'level') AND (d.value IS NULL OR d.value NOT IN ('now()', 'SESSION_USER'));
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_rows(section text, list jsonb DEFAULT NULL) RETURNS TABLE (name text, key jsonb, at tid, document jsonb) LANGUAGE plpgsql STABLE
SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	s record;
BEGIN
	SELECT c.relation, string_agg(format('%L, %s', c.name, CASE WHEN c.is_reference AND list IS NOT NULL THEN format('CASE WHEN o ->> %1$L ~* ''^\\x[0-9a-f]{64}$'' THEN lower(o ->> %1$L)
				WHEN o ->> %1$L IS NOT NULL THEN ''\x'' END', c.name)
			WHEN c.is_reference THEN format('(SELECT k.digest FROM rate_limit_api_keys k WHERE k.id = t.%I)', c.name)
			WHEN c.name = 'counted_as' AND list IS NOT NULL THEN format('nullif(coalesce(t.counted_as, (SELECT r.counted_as FROM %1$s r WHERE r.%2$I = t.%2$I)), t.%2$I)', c.relation,
				CASE c.section WHEN 'users' THEN 'user_id' ELSE 'name' END)
			WHEN c.type = 'interval' THEN format('rate_limit_span(t.%I)', c.name)
			WHEN c.name = 'events' THEN 'coalesce(to_jsonb(t.events), ''"unlimited"'')'
			WHEN c.default_value IS NULL THEN format('t.%I', c.name)
			ELSE format('nullif(t.%I, %s)', c.name, c.default_value) END), ', ') AS fields,
		string_agg(format(CASE c.key WHEN 1 THEN '%s' WHEN 2 THEN '''/'' || (%s)' ELSE ''' %2$s '' || (%1$s)' END, format(CASE WHEN c.is_reference OR c.type = 'bytea'
				THEN 'regexp_replace(d.document ->> %L, ''^(\\x[0-9a-f]{12})[0-9a-f]{52}$|^.*$'', ''\1...'')'
				ELSE 'd.document ->> %L' END, c.name), c.name), ', ' ORDER BY c.key)
			FILTER (WHERE c.key > 0) AS shown,
		string_agg(format('d.document -> %L', c.name), ', ' ORDER BY c.key) FILTER (WHERE c.key > 0) AS keys,
		array_agg(c.name) FILTER (WHERE c.is_reference) AS refs
	INTO s FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_rows.section GROUP BY c.relation;
	RETURN QUERY EXECUTE format('SELECT concat(%s), jsonb_build_array(%s), d.at, d.document
		FROM (SELECT jsonb_strip_nulls(jsonb_build_object(%s)) AS document, %s OFFSET 0) AS d',
		s.shown, s.keys, s.fields, CASE WHEN list IS NULL THEN format('t.ctid AS at FROM %s t', s.relation) ELSE format('NULL::tid AS at FROM jsonb_array_elements($1) AS o
			CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, rate_limit_policy_values(o, $2)) t', s.relation) END)
		USING list, s.refs;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_values(fields jsonb, refs text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN CASE WHEN fields ->> 'events' = 'unlimited' THEN fields - 'events' ELSE fields END
	- coalesce(refs, '{}') || CASE WHEN fields ->> 'time_zone' <> 'UTC' THEN jsonb_build_object('time_zone', coalesce(rate_limit_known_zone(fields ->> 'time_zone'), fields ->> 'time_zone')) ELSE '{}' END
	|| CASE WHEN fields ? 'model' THEN jsonb_build_object('model', rate_limit_model(fields ->> 'model')) ELSE '{}' END;
--;
CREATE OR REPLACE FUNCTION rate_limit_money_limits(lists jsonb DEFAULT '{}') RETURNS text[]
	LANGUAGE sql STABLE AS $$
	SELECT coalesce(array_agg(concat(l.rule, '/', l.name)), '{}') FROM ( SELECT o.* FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text, unit text)
		UNION ALL SELECT t.rule, t.name, t.unit FROM rate_limit_rule_limits t WHERE NOT EXISTS (SELECT FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text)
				WHERE (o.rule, o.name) = (t.rule, t.name))) AS l WHERE l.unit = 'money'
$$;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy(users boolean DEFAULT false) RETURNS jsonb
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	money CONSTANT text[] := rate_limit_money_limits();
	limits CONSTANT jsonb := (SELECT jsonb_object_agg(l.rule, jsonb_build_object('limits', l.list)) FROM (
		SELECT r.document ->> 'rule' AS rule, jsonb_agg(rate_limit_policy_amounts(r.document, money) - 'rule' ORDER BY r.key) AS list
		FROM rate_limit_policy_rows('limits') r GROUP BY 1) AS l);
BEGIN
	RETURN (SELECT jsonb_object_agg(s.section, coalesce(( SELECT jsonb_agg(rate_limit_policy_amounts(r.document, money) || coalesce(CASE s.section
				WHEN 'rules' THEN limits -> r.name END, '{}') ORDER BY r.key)
			FROM rate_limit_policy_rows(s.section) r WHERE users OR s.section <> 'overrides' OR r.document ? 'tier'), '[]'))
		FROM (SELECT DISTINCT section FROM rate_limit_policy_columns) AS s
		WHERE s.section <> 'limits' AND (users OR s.section NOT IN ('users', 'keys')));
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_lists(policy jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
	sections CONSTANT text[] := '{tiers,users,keys,rules,overrides,prices}';
	money text[];
	lists jsonb := policy;
	result jsonb := '{}';
	rows jsonb;
	part record;
	item record;
	fault text;
BEGIN
	SELECT concat(f.key, CASE WHEN f.key = ANY (sections) THEN ': must be a list of rows, each with fields' ELSE ': unknown: must be one of ' || array_to_string(sections, ', ') END) INTO fault
		FROM jsonb_each(CASE jsonb_typeof(policy) WHEN 'object' THEN policy ELSE '{"policy": 1}' END) AS f
		WHERE f.key <> ALL (sections) OR jsonb_typeof(f.value) <> 'array' OR f.value @? '$[*] ? (@.type() != "object")' OR f.key = 'rules' AND f.value @?
				'strict $[*].limits ? (@.type() != "array" || @[*].type() != "object")'
		ORDER BY f.key = ANY (sections), f.key LIMIT 1;
	PERFORM rate_limit_refuse(fault, 'invalid_parameter_value');
	IF policy ? 'rules' THEN
		SELECT policy || jsonb_build_object('rules', coalesce(jsonb_agg(r - 'limits'), '[]'), 'limits', (SELECT coalesce(jsonb_agg(l || jsonb_build_object('rule', r -> 'name')), '[]')
				FROM jsonb_array_elements(policy -> 'rules') AS r, jsonb_array_elements(r -> 'limits') AS l))
			INTO lists FROM jsonb_array_elements(policy -> 'rules') AS r;
	END IF;
	money := rate_limit_money_limits(lists);
	PERFORM rate_limit_refuse(format('%s "%s": events: %s: must be 0 to 9007199254.740992 with at most 6 decimals', left(s, -1), n.name, o -> 'events'), 'invalid_parameter_value')
		FROM unnest('{limits,overrides}'::text[]) AS s, jsonb_array_elements(lists -> s) AS o, concat(o ->> 'rule', '/', coalesce(o ->> 'limit_name', o ->> 'name')) AS n(name)
		WHERE n.name = ANY (money) AND o ->> 'events' <> 'unlimited' AND NOT rate_limit_is_money(o ->> 'events');
	SELECT lists || coalesce(jsonb_object_agg(s, (SELECT coalesce(jsonb_agg(rate_limit_policy_amounts(o, money, true)), '[]') FROM jsonb_array_elements(lists -> s) AS o)), '{}') INTO lists
		FROM unnest('{limits,overrides}'::text[]) AS s WHERE lists ? s;
	FOR part IN SELECT section, left(section, -1) AS kind, relation, jsonb_object_agg(name, type) AS types, array_agg(name) FILTER (WHERE needed) AS needed,
			array_agg(name ORDER BY key) FILTER (WHERE key <= 2) AS keys,
			string_agg(name, ', ' ORDER BY position) || CASE section WHEN 'rules' THEN ', limits' ELSE '' END AS known
		FROM rate_limit_policy_columns WHERE lists ? section
		GROUP BY place, section, relation ORDER BY place
	LOOP
		EXIT WHEN fault IS NOT NULL;
		SELECT d.o, f.key, f.value, CASE WHEN part.types -> f.key IS NULL THEN format('unknown: must be one of %s', part.known)
				WHEN f.value IS NULL THEN 'missing: must be given' WHEN part.types ->> f.key LIKE '%[]' THEN 'must be a list, as in [a, b]'
				ELSE 'must be one value' END AS wrong
			INTO item FROM jsonb_array_elements(lists -> part.section) WITH ORDINALITY AS d(o, place) CROSS JOIN LATERAL ( SELECT e.key, e.value FROM jsonb_each(d.o) e WHERE part.types -> e.key IS NULL
					OR jsonb_typeof(e.value) <> 'null' AND (part.types ->> e.key LIKE '%[]') <> (jsonb_typeof(e.value) = 'array') OR jsonb_typeof(e.value) = 'object'
				UNION ALL SELECT n, NULL FROM unnest(part.needed) AS n WHERE d.o ->> n IS NULL) AS f(key, value)
			ORDER BY d.place LIMIT 1;
		IF NOT FOUND THEN
			BEGIN
				SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') INTO rows FROM rate_limit_policy_rows(part.section, lists -> part.section) r;
				result := result || jsonb_build_object(part.section, rows);
				SELECT format('%s "%s": must be given once', part.kind, min(r.name)) INTO fault FROM jsonb_to_recordset(rows) AS r(name text, key jsonb) GROUP BY r.key HAVING count(*) > 1 LIMIT 1;
				CONTINUE;
			EXCEPTION WHEN data_exception THEN
				FOR item IN SELECT d.o, f.key, f.value, 'must be of the type ' || (part.types ->> f.key) AS wrong FROM jsonb_array_elements(lists -> part.section) AS d(o), jsonb_each(d.o) f
					WHERE f.value <> '"unlimited"' OR f.key <> 'events'
				LOOP
					BEGIN
						EXECUTE format('SELECT FROM jsonb_populate_record(NULL::%s,
							jsonb_build_object($1, $2)) t WHERE t.%I IS NULL', part.relation, item.key)
							USING item.key, item.value;
					EXCEPTION WHEN data_exception THEN
						EXIT;
					END;
				END LOOP;
			END;
		END IF;
		fault := format('%s "%s": %s: %s%s', part.kind, (SELECT string_agg(CASE part.types ->> k WHEN 'bytea' THEN coalesce(substring(item.o ->> k FROM '^\\x[0-9a-f]{12}'), '') || '...'
				ELSE item.o ->> k END, '/') FROM unnest(part.keys) AS k), item.key,
			CASE WHEN item.wrong LIKE 'must%' AND item.key NOT IN ('digest', 'hint', 'key_id', 'replaced_by') THEN concat(item.value, ': ') END, item.wrong);
	END LOOP;
	PERFORM rate_limit_refuse(fault, 'invalid_parameter_value');
	RETURN result;
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_fault(fault text, message text, detail text, fields jsonb) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	part CONSTANT text[] := regexp_match(fault, '^(.*?)_((?:must|needs)_.*)$');
	taken CONSTANT text[] := regexp_match(detail, '^Key \(family, priority\)=\((.*), (.*?)\) already exists');
BEGIN
	IF fault LIKE 'exactly\_one\_of\_per%' AND fields ->> 'algorithm' = 'in_flight' THEN
		RETURN 'algorithm: "in_flight": must be an algorithm with a window; in_flight limits concurrent requests';
	ELSIF fault LIKE 'unit\_other%' THEN
		RETURN format('algorithm: %s: must be fixed_window or sliding_window with a unit of tokens or money: a response may cost more than is left, and other algorithms cannot count that',
			fields -> 'algorithm');
	ELSIF taken IS NOT NULL THEN
		RETURN format('priority: %s: must differ from the priority of the rule %s, which is in the same family', taken[2], (SELECT to_json(r.name) FROM rate_limit_rules r WHERE r.family = taken[1]
				AND r.priority::text = taken[2]));
	ELSIF part IS NULL THEN
		RETURN message;
	ELSIF fields ->> part[1] IS NULL OR part[1] IN ('digest', 'hint') THEN
		RETURN concat( CASE WHEN NOT fields ? 'limit_name' THEN substring(message FROM '^the override \d+') || ': ' END, (SELECT string_agg(format('%s: %s', f.key, f.value), ', ' ORDER BY f.key) || ': '
			FROM jsonb_each(nullif(fields, 'null')) AS f
			WHERE f.key NOT IN ('digest', 'hint', 'key_id') AND f.key IN (SELECT a.attname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
				WHERE c.contype = 'c' AND c.conname = fault)),
			replace(fault, '_', ' '), CASE WHEN detail LIKE 'Key %' AND detail NOT LIKE '%digest%'
			THEN ': ' || detail END);
	END IF;
	RETURN concat(part[1], ': ', fields -> part[1], ': ', replace(split_part(part[2], 'rate_limit', 1), '_', ' '), substring(part[2] FROM 'rate_limit.*'), CASE WHEN part[2] LIKE '%rate_limit_tiers' THEN
			(SELECT ', which has ' || string_agg(t.tier, ', ' ORDER BY t.rank, t.tier) FROM rate_limit_tiers t)
			WHEN part[1] IN ('algorithm', 'unit') THEN
			(SELECT ': ' || string_agg(name[1], ', ') FROM pg_constraint, regexp_matches(pg_get_constraintdef(oid), '''([a-z_]+)''', 'g') AS name
				WHERE conname = fault AND conrelid = 'rate_limit_rule_limits'::regclass) END);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_policy_write(section text, how text, list jsonb) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	chosen CONSTANT jsonb := jsonb_path_query_array(list, CASE how WHEN 'insert' THEN '$[*] ? (@.have == null)'
		WHEN 'delete' THEN '$[*] ? (@.document == null)' ELSE '$[*] ? (@.document != null)' END::jsonpath);
	s record;
BEGIN
	IF coalesce(jsonb_array_length(chosen), 0) = 0 THEN
		RETURN;
	END IF;
	SELECT c.relation, string_agg(quote_ident(c.name), ', ' ORDER BY c.position) AS names, string_agg(format(CASE WHEN c.is_reference THEN 'CASE WHEN d.document ? %1$L
				THEN coalesce((SELECT k.id FROM rate_limit_api_keys k
					WHERE k.digest = (d.document ->> %1$L)::bytea), 0) END'
			WHEN c.default_value IS NULL THEN 't.%I' ELSE 'coalesce(t.%I, %s)' END, c.name, c.default_value),
			', ' ORDER BY c.position) AS row
		INTO s FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_write.section AND CASE how WHEN 'insert' THEN NOT (c.is_reference AND c.section = 'keys' OR c.name = 'parent')
				ELSE c.key IS NULL END GROUP BY c.relation;
	PERFORM rate_limit_write(format(CASE how WHEN 'insert' THEN 'INSERT INTO %s (%s) SELECT %s FROM %s, %s'
		WHEN 'update' THEN 'UPDATE %s x SET (%s) = ROW(%s) FROM %s, %s, %s AND h.document <> d.document'
		WHEN 'clear' THEN 'UPDATE %s x SET ' || CASE section WHEN 'users' THEN 'parent = NULL' ELSE 'events = NULL, burst = NULL' END || ' FROM %4$s, %6$s'
		ELSE 'DELETE FROM %s x USING %4$s, %6$s' END, s.relation, s.names, s.row,
		'jsonb_to_recordset($1) AS d(key jsonb, document jsonb)',
		format('jsonb_populate_record(NULL::%s, rate_limit_policy_values(d.document, %L)) t', s.relation, (SELECT array_agg(c.name) FROM rate_limit_policy_columns c
			WHERE c.section = rate_limit_policy_write.section AND c.is_reference)),
		format('rate_limit_policy_rows(%L) AS h WHERE x.ctid = h.at AND h.key = d.key', section)), chosen,
		section);
END $$;
--;
CREATE OR REPLACE FUNCTION rate_limit_apply(policy jsonb, prune boolean DEFAULT false, dry_run boolean DEFAULT false, force boolean DEFAULT false)
RETURNS TABLE (section text, name text, what text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
	lists CONSTANT jsonb := rate_limit_policy_lists(policy);
	money CONSTANT text[] := rate_limit_money_limits(); -- before
	money_now CONSTANT text[] := rate_limit_money_limits(jsonb_build_object('limits', jsonb_path_query_array(lists, '$.limits[*].document')));
	plan jsonb := '{}'; -- Maps a section to its rows that differ, for rate_limit_policy_write.
	part record;
	found jsonb;
	defaults jsonb;
	unknown text[];
	fault text;
	detail text;
BEGIN
	LOCK TABLE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules, rate_limit_rule_limits, rate_limit_overrides, rate_limit_prices IN SHARE ROW EXCLUSIVE MODE;
	FOR part IN SELECT c.section, string_agg(format('%L, %s', c.name, coalesce(c.default_value, 'NULL')), ', ') AS defaults FROM rate_limit_policy_columns c WHERE lists ? c.section
		GROUP BY c.place, c.section ORDER BY c.place LOOP
		EXECUTE format('SELECT jsonb_build_object(%s)', part.defaults) INTO defaults;
		SELECT jsonb_agg(jsonb_build_object('key', coalesce(w.key, h.key), 'have', h.document, 'document', w.document, 'name', coalesce(w.name, h.name)) ORDER BY coalesce(w.key, h.key)) INTO found
			FROM rate_limit_policy_rows(part.section) h FULL JOIN jsonb_to_recordset(lists -> part.section) AS w(name text, key jsonb, document jsonb) ON w.key = h.key
			WHERE h.key IS NULL OR h.document <> w.document OR w.key IS NULL AND prune AND h.key <> '["anonymous"]' AND (part.section <> 'overrides'
				OR (lists ? 'users' OR NOT h.document ? 'user_id') AND (lists ? 'keys' OR NOT h.document ? 'key_id'));
		CONTINUE WHEN found IS NULL;
		plan := plan || jsonb_build_object(part.section, found);
		PERFORM rate_limit_refuse('price "' || d.name || '": ' || rate_limit_price_fault(h.rates -> p.model, rate_limit_rates(p))) FROM (SELECT rate_limit_rates_in_force() AS rates OFFSET 0) AS h,
				jsonb_to_recordset(found) AS d(document jsonb, name text),
				jsonb_populate_record(NULL::rate_limit_prices, d.document) AS p
			WHERE part.section = 'prices' AND force IS NOT TRUE;
		RETURN QUERY SELECT part.section, d.name, f.* FROM (SELECT d.name, rate_limit_policy_amounts(d.have, money) AS have, rate_limit_policy_amounts(d.document, money_now) AS document
				FROM jsonb_to_recordset(found) AS d(have jsonb, document jsonb, name text)) AS d
			CROSS JOIN LATERAL (SELECT 'created', NULL::jsonb, d.document WHERE d.have IS NULL UNION ALL SELECT 'deleted', d.have, NULL WHERE d.document IS NULL
				UNION ALL SELECT e.key, nullif((defaults || d.have) -> e.key, 'null'), nullif(e.value, 'null') FROM jsonb_each(defaults || d.document) AS e WHERE e.value <> (defaults || d.have) -> e.key) AS f;
	END LOOP;
	IF plan = '{}' THEN
		RETURN;
	END IF;
	BEGIN
		unknown := ARRAY(SELECT concat(r.name, '/', t) FROM rate_limit_rules r, unnest(r.tiers) AS t WHERE t NOT IN (SELECT tier FROM rate_limit_tiers));
		SET CONSTRAINTS ALL DEFERRED;
		PERFORM rate_limit_policy_write('overrides', 'delete', plan -> 'overrides');
		PERFORM rate_limit_policy_write('limits', 'delete', plan -> 'limits');
		PERFORM rate_limit_policy_write('rules', 'delete', plan -> 'rules');
		PERFORM rate_limit_policy_write('overrides', 'clear', plan -> 'overrides') WHERE plan ? 'limits';
		PERFORM rate_limit_policy_write('users', 'clear', jsonb_path_query_array(plan -> 'users', '$[*] ? (@.have.parent != null)'));
		PERFORM rate_limit_policy_write('users', 'delete', plan -> 'users');
		FOR part IN SELECT DISTINCT c.place, c.section FROM rate_limit_policy_columns c WHERE plan ? c.section ORDER BY 1 LOOP
			PERFORM rate_limit_policy_write(part.section, 'insert', plan -> part.section);
			PERFORM rate_limit_policy_write(part.section, 'update', plan -> part.section);
		END LOOP;
		PERFORM rate_limit_policy_write(s, 'delete', plan -> s) FROM unnest('{keys,tiers,prices}'::text[]) AS s;
		PERFORM rate_limit_refuse(format('%s "%s": refers to a row that prune deletes, or did: keep that row, or apply the document without prune first', rtrim(s, 's'), w.name), 'foreign_key_violation')
			FROM unnest('{keys,overrides}'::text[]) AS s
			CROSS JOIN LATERAL jsonb_to_recordset(lists -> s) AS w(name text, key jsonb, document jsonb)
			WHERE prune AND NOT EXISTS (SELECT FROM rate_limit_policy_rows(s) AS h WHERE h.key = w.key AND h.document = w.document);
		PERFORM rate_limit_refuse(f.fault, 'foreign_key_violation') FROM ( SELECT format('rule "%s": %s', f.name, f.fault) AS fault FROM (
			SELECT r.name, format('tiers: "%s": must be in the section tiers, or in rate_limit_tiers', t)
			FROM rate_limit_rules r, unnest(r.tiers) AS t
			WHERE t NOT IN (SELECT tier FROM rate_limit_tiers) AND concat(r.name, '/', t) <> ALL (unknown)
			UNION ALL SELECT r.name, format('priority: %s: must differ from the priority of the rule "%s", which is in the same family', r.priority, o.name)
			FROM rate_limit_rules r JOIN rate_limit_rules o ON (o.family, o.priority) = (r.family, r.priority) AND o.name > r.name
			UNION ALL SELECT r.name, format('counted_as: "%s": must be a name by which no other rule counts: the rule "%s" counts by it', r.counts, o.name)
			FROM (SELECT x.name, coalesce(x.counted_as, x.name) AS counts FROM rate_limit_rules x) AS r JOIN rate_limit_rules o ON coalesce(o.counted_as, o.name) = r.counts AND o.name > r.name)
			AS f(name, fault) ORDER BY f.fault DESC, f.name LIMIT 1) AS f;
		SET CONSTRAINTS ALL IMMEDIATE;
		SET CONSTRAINTS ALL DEFERRED;
		IF dry_run THEN
			RAISE SQLSTATE 'RL000';
		END IF;
	EXCEPTION WHEN SQLSTATE 'RL000' THEN
		NULL; -- The exception undoes the changes of the block. The rows of RETURN QUERY stay.
	WHEN integrity_constraint_violation THEN
		GET STACKED DIAGNOSTICS fault = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
		RAISE check_violation USING MESSAGE = concat('rule "' || substring(detail FROM '^The rule is ''(.*)''\.$') || '": ', fault);
	END;
END $$;
--;
COMMENT ON VIEW rate_limit_policy_columns IS 'The columns of the policy that a document has. Values that the server fills are left out.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.place IS 'The order of the tables. Rows refer only to rows of earlier tables.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.section IS 'The name of the list of rows in a document.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.relation IS 'The table.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.position IS 'The place of the column in the table.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.name IS 'The column.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.type IS 'The type of the column.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.default_value IS 'The default of the column, as SQL. NULL: none.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.key IS 'The place among the columns that name a row. NULL: the column is not one of them.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.needed IS 'Whether each row of a document must have the column.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.is_reference IS 'Whether the column is the id of an API key. A document has the digest of the key in its place.';
--;
COMMENT ON COLUMN rate_limit_policy_columns.description IS 'The meaning of the column.';
--;
COMMENT ON FUNCTION rate_limit_policy_rows IS 'The rows of a section of the policy, or of list as the tables would have them: the name for messages, the fields that identify the row (key), its place in the table (at; NULL in a list), and the fields that do not have their defaults.';
--;
COMMENT ON FUNCTION rate_limit_policy_values IS 'The values of a row of a document, without its references to API keys, without links of time zones, and with the name of a model as prices have it.';
--;
COMMENT ON FUNCTION rate_limit_money_limits IS 'The limits in money, as RULE/LIMIT, with those that the lists of a document have.';
--;
COMMENT ON FUNCTION rate_limit_policy IS 'The policy as a document: tiers, rules with their limits, overrides for tiers, and prices. users adds the users, the digests of their API keys, and their overrides. A field that has its default is left out.';
--;
COMMENT ON FUNCTION rate_limit_policy_lists IS 'The rows of rate_limit_policy_rows of a document, by section. It fails for unknown or missing fields, values of a wrong type, and rows given twice.';
--;
COMMENT ON FUNCTION rate_limit_fault IS 'The error of a constraint for display: the field, its value, and the permitted values; or the message, if the name of the constraint does not describe them.';
--;
COMMENT ON FUNCTION rate_limit_policy_write IS 'Inserts, updates or deletes rows of a section for rate_limit_apply, or clears the amounts of overrides and the parents of users. The error is about the row that the server refuses.';
--;
COMMENT ON FUNCTION rate_limit_apply IS 'Changes the policy to match a document of rate_limit_policy, and returns the differences: a new or deleted row, or a changed field of an existing row. A field that the document lacks gets its default, except counted_as of a rule. Rows that the document lacks stay; prune deletes such rows of the sections that the document has. dry_run checks everything and changes nothing. force permits prices that differ by more than ten times from those in force.';
--;
DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT u.view_name, u.column_name, min(col_description(t.attrelid, t.attnum)) AS text FROM information_schema.view_column_usage u
		JOIN pg_attribute t ON t.attrelid = to_regclass(quote_ident(u.table_name)) AND t.attname = u.column_name
		JOIN pg_attribute a ON a.attrelid = to_regclass(quote_ident(u.view_name)) AND a.attname = u.column_name
		WHERE u.view_schema = current_schema() AND u.view_name LIKE 'rate\_limit\_%' AND col_description(a.attrelid, a.attnum) IS NULL GROUP BY 1, 2
	LOOP
		EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', described.view_name, described.column_name, described.text);
	END LOOP;
END $$;
--;
DO $$
DECLARE
	function record;
	setting text;
	had CONSTANT oid[] := current_setting('pg_ratelimit.had');
	own CONSTANT oid := to_regnamespace(quote_ident(current_schema()));
BEGIN
	PERFORM rate_limit_strip(ARRAY(SELECT c.oid FROM pg_class c WHERE c.relnamespace = own AND c.oid <> ALL (had)
		UNION ALL SELECT p.oid FROM pg_proc p WHERE p.pronamespace = own AND p.oid <> ALL (had)));
	FOR function IN SELECT p.oid::regprocedure AS signature, p.prosecdef OR p.prorettype = 'trigger'::regtype AS fixed FROM pg_proc p WHERE p.pronamespace = own AND p.proname LIKE 'rate\_limit\_%'
			AND p.proname NOT IN ('rate_limit_counters', 'rate_limit_override_of', 'rate_limit_lineage')
			AND p.provolatile <> 'i' AND p.prosqlbody IS NULL AND pg_has_role(p.proowner, 'USAGE')
			AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')
	LOOP
		EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, %I, pg_temp', function.signature, current_schema());
		FOREACH setting IN ARRAY CASE WHEN function.fixed THEN ARRAY['TimeZone = ''UTC''', 'DateStyle = ''ISO, YMD''', 'IntervalStyle = ''postgres''', 'bytea_output = ''hex''',
			'extra_float_digits = 1', 'array_nulls = on', 'standard_conforming_strings = on',
			'quote_all_identifiers = off', 'lc_numeric = ''C''', 'lc_time = ''C''', 'lc_monetary = ''C''']
			ELSE '{}' END LOOP
			EXECUTE format('ALTER ROUTINE %s SET %s', function.signature, setting);
		END LOOP;
	END LOOP;
	FOR function IN SELECT p.oid::regprocedure AS signature FROM pg_proc p WHERE p.pronamespace = own AND p.proname LIKE 'rate\_limit\_%' AND rate_limit_is_for_all(p)
			AND p.oid <> ALL (had) AND pg_has_role(p.proowner, 'USAGE')
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', function.signature);
	END LOOP;
END $$;
--;
SELECT rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role;
--;
SELECT rate_limit_ledger_upkeep();
--;
$file$), E'\n--;\n') LOOP BEGIN EXECUTE command;
		EXCEPTION WHEN OTHERS THEN GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
			RAISE EXCEPTION USING ERRCODE = SQLSTATE, DETAIL = detail, HINT = CASE WHEN SQLSTATE = '2BP01' THEN 'Drop what depends on it, and make it again after the migration. ' ELSE coalesce(nullif(hint, '') || ' ', '') END
					|| 'The migration has changed nothing.', MESSAGE = concat(replace(substring(context FROM '((?:FUNCTION|PROCEDURE|AGGREGATE|VIEW|TABLE|INDEX|TRIGGER|TYPE|SEQUENCE) (?:IF EXISTS )?rate_limit_\w+)'), 'IF EXISTS ', '') || ': ', SQLERRM);
		END;
	END LOOP;
	EXECUTE format($about$ CREATE OR REPLACE FUNCTION rate_limit_about() RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ''%s''::jsonb'$about$, facts || jsonb_build_object('number', 7, 'revision', 41,
		'oldest', 1, 'keys', (SELECT jsonb_agg(concat(c.relname, '.', k.conname) ORDER BY concat(c.relname, '.', k.conname) COLLATE "C") FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE facts -> 'tables' ? c.relname
				AND pg_table_is_visible(c.oid) AND k.contype IN ('p', 'u', 'x')), 'triggers', (SELECT count(*) FROM pg_trigger g WHERE g.tgname LIKE 'rate\_limit\_%' AND g.tgname <> 'rate_limit_refuse_count' AND g.tgrelid
			IN (SELECT to_regclass(t) FROM jsonb_array_elements_text(facts -> 'tables') t))));
	COMMENT ON FUNCTION rate_limit_about IS 'What the database has: the number of the last file that it has run, the revision of its functions, the oldest program that may go on, the columns by which only '
		'newer programs match rules, its tables, their keys, and the number of their triggers.';
END $migration$;
`

// ShardTables makes the tables of a shard, or upgrades them, in the first schema of the search_path.
const ShardTables = `
CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral ( prefix       TEXT COLLATE "C" NOT NULL, key          TEXT COLLATE "C" NOT NULL, count        BIGINT, prev_count   BIGINT, window_start TIMESTAMPTZ, tokens       DOUBLE PRECISION,
	last_refill  TIMESTAMPTZ, expires_at   TIMESTAMPTZ NOT NULL, hits         TIMESTAMPTZ[], remainder    BIGINT, ord          INT, granted      BIGINT, slots        BIGINT[], held         BIGINT[], PRIMARY KEY (prefix, key) );
CREATE TABLE IF NOT EXISTS rate_limit_durable (LIKE rate_limit_ephemeral, PRIMARY KEY (prefix, key));
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
CREATE TABLE IF NOT EXISTS rate_limit_processes ( process bigint PRIMARY KEY, seen    timestamptz NOT NULL );
COMMENT ON TABLE rate_limit_ephemeral IS 'The counters that a crash of the server empties.';
COMMENT ON TABLE rate_limit_durable IS 'The counters that survive a crash of the server.';
COMMENT ON TABLE rate_limit_processes IS 'The processes with running requests that hold slots of in_flight limits, or tokens. Each renews its row every 3 seconds.';
COMMENT ON COLUMN rate_limit_processes.process IS 'About the start of the process in seconds since 2000. After a long pause, a process takes another row.';
COMMENT ON COLUMN rate_limit_processes.seen IS 'When the process renewed this row. 10 seconds later, what its requests hold is free.';
CREATE TABLE IF NOT EXISTS rate_limit_ledger ( day              date NOT NULL, id               uuid NOT NULL, time             timestamptz NOT NULL, user_id          text, key_id           bigint,
	ancestors        text[] NOT NULL DEFAULT '{}', model            text, input            bigint, cache_read       bigint, cache_write      bigint, output           bigint, money            bigint, charges          jsonb NOT NULL,
	kind             text NOT NULL DEFAULT 'charge', cache_write_1h   bigint, audio_input      bigint, audio_cache_read bigint, audio_output     bigint, image_input      bigint, image_output     bigint, search           bigint,
	estimated_input  bigint, estimated_output bigint, estimated_money  numeric, remainder        smallint, tier             text, answered         text, price            text, price_valid      tstzrange, lines            jsonb,
	corrects         uuid, corrects_time    timestamptz, corrected_by     text, reason           text, CONSTRAINT amounts_of_a_charge_must_be_0_or_more CHECK (kind <> 'charge'
		OR least(input, cache_read, cache_write, cache_write_1h, output, audio_input, audio_cache_read, audio_output, image_input, image_output, search, estimated_input, estimated_output, money,
			money * 1000 + remainder, remainder + 999, -remainder) >= 0 AND estimated_money >= 0 AND NOT lines @? '$[*].* ? (@ < 0)' AND NOT charges @? '$[*] ? (!(@.units.type() == "number" && @.units >= 0 && @.units < 1e18))')
) PARTITION BY RANGE (day);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_user ON rate_limit_ledger (user_id, time);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_ancestors ON rate_limit_ledger USING gin (ancestors) WHERE ancestors <> '{}';
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_parts ON rate_limit_ledger (time) WHERE num_nonnulls(audio_input, audio_cache_read, audio_output, image_input, image_output, search, lines) > 0;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_corrects ON rate_limit_ledger (corrects) WHERE corrects IS NOT NULL;
COMMENT ON TABLE rate_limit_ledger IS 'What requests have cost on limits of tokens and money: a row for each request, or on Citus for each part of it, and one for each correction.';
COMMENT ON COLUMN rate_limit_ledger.day IS 'The day on which the request came, in UTC.';
COMMENT ON COLUMN rate_limit_ledger.id IS 'The number of the request.';
COMMENT ON COLUMN rate_limit_ledger.time IS 'When the request was charged, after its response.';
COMMENT ON COLUMN rate_limit_ledger.user_id IS 'The name by which the user counts. NULL: unknown, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.key_id IS 'The id of the API key. NULL: none, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.ancestors IS 'The users above the user when the request came, the nearest first, by the names by which they count. Empty: forgotten.';
COMMENT ON COLUMN rate_limit_ledger.model IS 'The model that the request named. NULL: none.';
COMMENT ON COLUMN rate_limit_ledger.input IS 'The tokens of the prompt that no cache had, without sound and pictures. NULL: not reported.';
COMMENT ON COLUMN rate_limit_ledger.cache_read IS 'The tokens of the prompt that came from a cache, as input.';
COMMENT ON COLUMN rate_limit_ledger.cache_write IS 'The tokens of the prompt that were written to a cache for five minutes, as input.';
COMMENT ON COLUMN rate_limit_ledger.output IS 'The tokens of the answer, without sound and pictures, as input.';
COMMENT ON COLUMN rate_limit_ledger.money IS 'The cost in millionths of the currency of the prices, rounded up. NULL: the model has no price.';
COMMENT ON COLUMN rate_limit_ledger.charges IS 'What was charged: a list of objects with the prefix, key and durable of a counter, the unit, and the units.';
COMMENT ON COLUMN rate_limit_ledger.kind IS 'charge: what a request has cost. correction: how much more or less it costs by a later price. A correction has the users and the model of the request, money, charges and lines.';
COMMENT ON COLUMN rate_limit_ledger.remainder IS 'The billionths by which money is too much, negated, from -999. NULL: 0.';
COMMENT ON COLUMN rate_limit_ledger.cache_write_1h IS 'The tokens of the prompt that were written to a cache for an hour. In this and the following columns, NULL is 0.';
COMMENT ON COLUMN rate_limit_ledger.audio_input IS 'The tokens of sound in the prompt.';
COMMENT ON COLUMN rate_limit_ledger.audio_cache_read IS 'The tokens of sound in the prompt that came from a cache.';
COMMENT ON COLUMN rate_limit_ledger.audio_output IS 'The tokens of sound in the answer.';
COMMENT ON COLUMN rate_limit_ledger.image_input IS 'The tokens of pictures in the prompt.';
COMMENT ON COLUMN rate_limit_ledger.image_output IS 'The tokens of pictures in the answer.';
COMMENT ON COLUMN rate_limit_ledger.search IS 'The number of searches.';
COMMENT ON COLUMN rate_limit_ledger.estimated_input IS 'How much of input or cache_write is an estimate, because the response did not report it.';
COMMENT ON COLUMN rate_limit_ledger.estimated_output IS 'How much of output is an estimate.';
COMMENT ON COLUMN rate_limit_ledger.estimated_money IS 'What the estimates of input and output cost, in millionths, exact. NULL: nothing.';
COMMENT ON COLUMN rate_limit_ledger.tier IS 'The tier of service of the prices. NULL: standard.';
COMMENT ON COLUMN rate_limit_ledger.answered IS 'The model that the response named. NULL: none, or the one of the request.';
COMMENT ON COLUMN rate_limit_ledger.price IS 'The model of the row of prices, such as gpt-*. NULL: as model.';
COMMENT ON COLUMN rate_limit_ledger.price_valid IS 'The column valid of that row. NULL: without bounds.';
COMMENT ON COLUMN rate_limit_ledger.lines IS 'What further models have cost: a list of objects with model and the columns of the parts, and with '
	'money, which is exact here. NULL: none. Function rate_limit_ledger_rows has a row for each.';
COMMENT ON COLUMN rate_limit_ledger.corrects IS 'The request that a correction corrects.';
COMMENT ON COLUMN rate_limit_ledger.corrects_time IS 'When that request was charged.';
COMMENT ON COLUMN rate_limit_ledger.corrected_by IS 'The role that has made a correction.';
COMMENT ON COLUMN rate_limit_ledger.reason IS 'The reason for a correction.';
`

// Shards creates the functions that the shards share, and prevents programs from counting in the tables
// outside the shards.
const Shards = `
CREATE OR REPLACE FUNCTION rate_limit_guard(placement bigint) RETURNS void LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
	BEGIN
		PERFORM lock_shard_metadata(5, ARRAY[$1]);
	EXCEPTION WHEN lock_not_available THEN
		RAISE SQLSTATE 'RL002' USING MESSAGE = format('placement %s is being moved', $1);
	END;
	IF NOT EXISTS (SELECT FROM pg_dist_placement p WHERE p.shardid = $1 AND p.groupid = (SELECT l.groupid FROM pg_dist_local_group l)) THEN
		RAISE SQLSTATE 'RL001' USING MESSAGE = format('placement %s is not here', $1);
	END IF;
END $$;
CREATE OR REPLACE FUNCTION rate_limit_refuse_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE object_not_in_prerequisite_state USING MESSAGE = 'the counts of this database are in shards: restart this program, or upgrade it';
END $$;
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_ephemeral EXECUTE FUNCTION rate_limit_refuse_count();
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_durable EXECUTE FUNCTION rate_limit_refuse_count();
CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL) RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz,
	remainder bigint, hits timestamptz[], slots bigint, held bigint, expires_at timestamptz) LANGUAGE plpgsql STABLE
		SET search_path FROM CURRENT AS $$
DECLARE
	shard record;
BEGIN
	FOR shard IN SELECT p.schema FROM rate_limit_shards() p LOOP
		RETURN QUERY EXECUTE format(replace($sql$SELECT c.key, c.count, c.prev_count, c.window_start,
				c.tokens, c.last_refill, c.remainder, c.hits, (SELECT count(*) FROM unnest(slots) s WHERE (s >> 32) = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR (s >> 32) - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -(s >> 32) <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[])), (SELECT least(coalesce(sum(v), 0), 2305843009213693952)::bigint FROM (SELECT held[i][1] AS s, held[i][2] AS v FROM generate_subscripts(held, 1) i) p WHERE v > 0 AND (s = ANY ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]) OR s - (SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 AND -s <> ALL ((SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]))), c.expires_at FROM %1$I.%2$I c WHERE c.prefix = $1 AND ($2 IS NULL OR c.key = ANY ($2))$sql$,
			'{processes}', '%1$I.rate_limit_processes'), shard.schema, CASE WHEN durable THEN 'rate_limit_durable' ELSE 'rate_limit_ephemeral' END) USING prefix, keys;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_guard IS 'Fails unless a placement of the counts is on this server, and keeps the placement here until the transaction ends.';
COMMENT ON FUNCTION rate_limit_refuse_count IS 'Prevents programs without support for shards from counting outside the shards.';
`

// Numbered has the numbered files, in their order.
var Numbered = []NumberedFile{
	{1, "0001_baseline.shards.sql", "", "\n" + sql0001_baselineshards},
	{1, "0001_baseline.sql", "", "\n" + sql0001_baseline},
	{2, "0002_lost.sql", "", "\n" + sql0002_lost},
	{3, "0003_forgotten.sql", "", "\n" + sql0003_forgotten},
	{4, "0004_billing.sql", "", "\n" + sql0004_billing},
	{5, "0005_notice_currency.sql", "", "\n" + sql0005_notice_currency},
	{6, "0006_reset.sql", "", "\n" + sql0006_reset},
	{7, "0007_names.sql", "", "\n" + sql0007_names},
}

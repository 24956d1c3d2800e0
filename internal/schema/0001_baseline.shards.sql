-- The two tables of counts, and the ledger. Each shard has them, too. Tables of the npm library pg-ratelimit
-- are upgraded in place and keep their rows.
--
-- Keys have the collation "C" in every database, because comparing bytes costs less than following the rules
-- of a language. Tables that the npm library created keep the collation of their database.
--
-- The columns of the npm library come first. Four columns are for what the library lacks: hits for
-- sliding_log, remainder for gcra, slots for in_flight, and held for limits of tokens. An element of slots is
-- the number of a slot, with the process in its high 32 bits. An element of held is a pair: a process, and
-- the units that its running requests hold. Only a running statement uses the columns ord and granted: ord
-- is the place of the row's entry in the parameters, and granted is the number of admitted hits.

CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral (
	prefix       TEXT COLLATE "C" NOT NULL,
	key          TEXT COLLATE "C" NOT NULL,
	count        BIGINT,
	prev_count   BIGINT,
	window_start TIMESTAMPTZ,
	tokens       DOUBLE PRECISION,
	last_refill  TIMESTAMPTZ,
	expires_at   TIMESTAMPTZ NOT NULL,
	hits         TIMESTAMPTZ[],
	remainder    BIGINT,
	ord          INT,
	granted      BIGINT,
	slots        BIGINT[],
	held         BIGINT[],
	PRIMARY KEY (prefix, key)
);
CREATE TABLE IF NOT EXISTS rate_limit_durable (LIKE rate_limit_ephemeral, PRIMARY KEY (prefix, key));

-- The columns that the tables of the npm library lack. fillfactor leaves room on each page for the next
-- version of a row, so that an update changes no index.
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[],
	ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[],
	ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS ord INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);

-- The processes with requests that hold slots or units. Package session keeps the row of a process.
CREATE TABLE IF NOT EXISTS rate_limit_processes (
	process bigint PRIMARY KEY,
	seen    timestamptz NOT NULL
);
COMMENT ON TABLE rate_limit_ephemeral IS 'The counters that a crash of the server empties.';
COMMENT ON TABLE rate_limit_durable IS 'The counters that survive a crash of the server.';
COMMENT ON TABLE rate_limit_processes IS
	'The processes with running requests that hold slots of in_flight limits, or tokens. Each renews its row '
	'every 3 seconds.';
COMMENT ON COLUMN rate_limit_processes.process IS
	'About the start of the process in seconds since 2000. After a long pause, a process takes another row.';
COMMENT ON COLUMN rate_limit_processes.seen IS
	'When the process renewed this row. 10 seconds later, what its requests hold is free.';

-- The ledger. A settlement is a row and, only if the row is new, a change of counters in the same
-- transaction. So it can be repeated, and counts once. The day is the day of the reservation, which a
-- repetition has too. Each partition has one day, see ledger.sql. On Citus each shard has a ledger with its
-- part of each request. Proxies write no kind. The server reads the CHECK again for each statement, which
-- takes about 10 µs.
CREATE TABLE IF NOT EXISTS rate_limit_ledger (
	day              date NOT NULL,
	id               uuid NOT NULL,
	time             timestamptz NOT NULL,
	user_id          text,
	key_id           bigint,
	ancestors        text[] NOT NULL DEFAULT '{}',
	model            text,
	input            bigint,
	cache_read       bigint,
	cache_write      bigint,
	output           bigint,
	money            bigint,
	charges          jsonb NOT NULL,
	kind             text NOT NULL DEFAULT 'charge',
	cache_write_1h   bigint,
	audio_input      bigint,
	audio_cache_read bigint,
	audio_output     bigint,
	image_input      bigint,
	image_output     bigint,
	search           bigint,
	estimated_input  bigint,
	estimated_output bigint,
	estimated_money  numeric,
	remainder        smallint,
	tier             text,
	answered         text,
	price            text,
	price_valid      tstzrange,
	lines            jsonb,
	corrects         uuid,
	corrects_time    timestamptz,
	corrected_by     text,
	reason           text,
	CONSTRAINT amounts_of_a_charge_must_be_0_or_more CHECK (kind <> 'charge'
		OR least(input, cache_read, cache_write, cache_write_1h, output, audio_input, audio_cache_read,
			audio_output, image_input, image_output, search, estimated_input, estimated_output, money,
			money * 1000 + remainder, remainder + 999, -remainder) >= 0
		AND estimated_money >= 0
		AND NOT lines @? '$[*].* ? (@ < 0)'
		AND NOT charges @? '$[*] ? (!(@.units.type() == "number" && @.units >= 0 && @.units < 1e18))')
) PARTITION BY RANGE (day);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_user ON rate_limit_ledger (user_id, time);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_ancestors ON rate_limit_ledger USING gin (ancestors)
	WHERE ancestors <> '{}';
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_parts ON rate_limit_ledger (time)
	WHERE num_nonnulls(audio_input, audio_cache_read, audio_output, image_input, image_output, search,
		lines) > 0;
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_corrects ON rate_limit_ledger (corrects)
	WHERE corrects IS NOT NULL;
COMMENT ON TABLE rate_limit_ledger IS
	'What requests have cost on limits of tokens and money: a row for each request, or on Citus for each '
	'part of it, and one for each correction.';
COMMENT ON COLUMN rate_limit_ledger.day IS 'The day on which the request came, in UTC.';
COMMENT ON COLUMN rate_limit_ledger.id IS 'The number of the request.';
COMMENT ON COLUMN rate_limit_ledger.time IS 'When the request was charged, after its response.';
COMMENT ON COLUMN rate_limit_ledger.user_id IS
	'The name by which the user counts. NULL: unknown, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.key_id IS 'The id of the API key. NULL: none, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.ancestors IS
	'The users above the user when the request came, the nearest first, by the names by which they count. '
	'Empty: forgotten.';
COMMENT ON COLUMN rate_limit_ledger.model IS 'The model that the request named. NULL: none.';
COMMENT ON COLUMN rate_limit_ledger.input IS
	'The tokens of the prompt that no cache had, without sound and pictures. NULL: not reported.';
COMMENT ON COLUMN rate_limit_ledger.cache_read IS
	'The tokens of the prompt that came from a cache, as input.';
COMMENT ON COLUMN rate_limit_ledger.cache_write IS
	'The tokens of the prompt that were written to a cache for five minutes, as input.';
COMMENT ON COLUMN rate_limit_ledger.output IS
	'The tokens of the answer, without sound and pictures, as input.';
COMMENT ON COLUMN rate_limit_ledger.money IS
	'The cost in millionths of the currency of the prices, rounded up. NULL: the model has no price.';
COMMENT ON COLUMN rate_limit_ledger.charges IS
	'What was charged: a list of objects with the prefix, key and durable of a counter, the unit, and '
	'the units.';
COMMENT ON COLUMN rate_limit_ledger.kind IS
	'charge: what a request has cost. correction: how much more or less it costs by a later price. A '
	'correction has the users and the model of the request, money, charges and lines.';
COMMENT ON COLUMN rate_limit_ledger.remainder IS
	'The billionths by which money is too much, negated, from -999. NULL: 0.';
COMMENT ON COLUMN rate_limit_ledger.cache_write_1h IS
	'The tokens of the prompt that were written to a cache for an hour. In this and the following columns, '
	'NULL is 0.';
COMMENT ON COLUMN rate_limit_ledger.audio_input IS 'The tokens of sound in the prompt.';
COMMENT ON COLUMN rate_limit_ledger.audio_cache_read IS
	'The tokens of sound in the prompt that came from a cache.';
COMMENT ON COLUMN rate_limit_ledger.audio_output IS 'The tokens of sound in the answer.';
COMMENT ON COLUMN rate_limit_ledger.image_input IS 'The tokens of pictures in the prompt.';
COMMENT ON COLUMN rate_limit_ledger.image_output IS 'The tokens of pictures in the answer.';
COMMENT ON COLUMN rate_limit_ledger.search IS 'The number of searches.';
COMMENT ON COLUMN rate_limit_ledger.estimated_input IS
	'How much of input or cache_write is an estimate, because the response did not report it.';
COMMENT ON COLUMN rate_limit_ledger.estimated_output IS 'How much of output is an estimate.';
COMMENT ON COLUMN rate_limit_ledger.estimated_money IS
	'What the estimates of input and output cost, in millionths, exact. NULL: nothing.';
COMMENT ON COLUMN rate_limit_ledger.tier IS
	'The tier of service of the prices. NULL: standard.';
COMMENT ON COLUMN rate_limit_ledger.answered IS
	'The model that the response named. NULL: none, or the one of the request.';
COMMENT ON COLUMN rate_limit_ledger.price IS
	'The model of the row of prices, such as gpt-*. NULL: as model.';
COMMENT ON COLUMN rate_limit_ledger.price_valid IS
	'The column valid of that row. NULL: without bounds.';
COMMENT ON COLUMN rate_limit_ledger.lines IS
	'What further models have cost: a list of objects with model and the columns of the parts, and with '
	'money, which is exact here. NULL: none. Function rate_limit_ledger_rows has a row for each.';
COMMENT ON COLUMN rate_limit_ledger.corrects IS 'The request that a correction corrects.';
COMMENT ON COLUMN rate_limit_ledger.corrects_time IS 'When that request was charged.';
COMMENT ON COLUMN rate_limit_ledger.corrected_by IS 'The role that has made a correction.';
COMMENT ON COLUMN rate_limit_ledger.reason IS 'The reason for a correction.';

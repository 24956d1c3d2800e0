-- The table from which proxies read changes of the policy.

CREATE TABLE IF NOT EXISTS rate_limit_changes (
	seq    bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT rate_limit_changes_pkey PRIMARY KEY,
	xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
	kind   text NOT NULL,
	ref    text,
	at     timestamptz NOT NULL DEFAULT now(),
	by     text NOT NULL,
	before jsonb,
	after  jsonb,
	CONSTRAINT kind_must_be_what_a_table_holds
		CHECK (kind IN ('tier', 'user', 'key', 'rule', 'limit', 'override', 'ban'))
);
CREATE INDEX IF NOT EXISTS rate_limit_changes_xid ON rate_limit_changes (xid);
CREATE INDEX IF NOT EXISTS rate_limit_changes_at ON rate_limit_changes (at);
CALL rate_limit_describe('rate_limit_changes', $$
What was changed in the tables of the policy, for 30 days. Triggers write it, proxies poll it.
seq: The order in which the lines were written. Lines of other transactions may become visible later.
xid: The transaction. Proxies use it to find what has become visible since their last poll.
kind: What was changed: a tier, user, key, rule, limit, override or ban.
ref: Which one: the name of a tier or rule, rule/limit, the user, the hexadecimal digest of a key; for an
	override or a ban what it is for: tier/..., user/..., key/<digest>, network/.... NULL: all, because one
	statement changed more than 1,000 rows, or emptied the table.
at: When the transaction began.
by: The role that made the change, and in parentheses the person, if the setting rate_limit.person has a name.
before: The row before. NULL: it is new.
after: The row after. NULL: it was deleted.
$$);

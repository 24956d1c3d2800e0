-- The comments of the log of changes, by which proxies find the rows that they must load again.

CALL rate_limit_describe('rate_limit_changes', $$
The changes of the policy in the last 30 days. Triggers write them, and proxies poll them.
seq: The order in which the rows were written. A row may become visible later than rows of other transactions
	with higher numbers.
xid: The transaction. Proxies use it to find the changes that became visible since their last poll.
kind: The kind of the changed row: tier, user, key, rule, limit, override, ban or price.
ref: The changed row: the name of a tier or rule, rule/limit, the user, or the hexadecimal digest of a
	key. For an override or a ban, its target: tier/..., user/..., key/<digest> or network/.... NULL: all
	rows, because one statement changed more than 1,000 rows or emptied the table.
at: When the transaction started.
by: The role that made the change, and in parentheses the person in the setting rate_limit.person, if any.
before: The row before the change. NULL: it is new.
after: The row after the change. NULL: it was deleted.
$$);

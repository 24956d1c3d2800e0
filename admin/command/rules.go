package command

var rulesCommand = commandSpec{
	use: "rules", noun: "rule",
	short: "Lists and changes rules",
	commands: []commandSpec{{
		use:   "list",
		short: "Lists all rules in the order in which proxies try them, with their limits and problems",
		sql:   "SELECT * FROM rate_limit_rule_states",
	}, {
		use:   "set NAME SETTING=VALUE ...",
		short: "Creates a rule, or changes its settings",
		long: `per_second, per_minute, per_hour, per_day, per_month and in_flight set an amount, a number or
unlimited. limit.NAME sets a limit with any window, as in 100/10s, 10000/1mo calendar
Europe/Berlin, 50 money/1mo calendar or 5/in_flight. algorithm, burst, durable, on_exceed and notify
apply to all limits of the rule. valid is FROM..UNTIL, where either may be missing.`,
		example: `rules set free tiers=free algorithm=token_bucket per_hour=1000 burst=20
rules set protect paths='/api/v1/*' count_by=all per_second=100 mode=shadow
rules set friday limit.burst=50/10s valid=2026-11-27..2026-11-30
rules set team tiers=team limit.budget='50 money/1mo calendar' notify=80,100
rules set protect paths=`,
		flags: []flag{
			toggle("force", "allow an amount of 0, which refuses every request"),
		},
		runGo: setter("rate_limit_rule"),
	},
		ruleMode("enable", "enforce", "on: its limits apply"),
		ruleMode("disable", "off", "off: it is ignored"), {
			use:      "rename NAME NEW",
			short:    "Renames a rule, which keeps its counters",
			doneText: "renamed to",
			sql:      "SELECT WHERE rate_limit_rename('rule', @NAME, @NEW)",
		}, {
			use:      "delete NAME",
			short:    "Deletes a rule with its limits and overrides",
			doneText: "deleted",
			sql:      "SELECT WHERE rate_limit_delete_rule(@NAME)",
		}},
}

// ruleMode returns a command that sets a rule's mode.
func ruleMode(name, mode, help string) commandSpec {
	return commandSpec{
		use:      name + " NAME",
		short:    "Turns a rule " + help,
		doneText: name + "d",
		sql: "SELECT rate_limit_rule(name, mode => '" + mode + "') FROM rate_limit_rules " +
			"WHERE name = @NAME",
	}
}

var pricesCommand = commandSpec{
	use: "prices", noun: "price",
	short: "Lists and changes the prices of language models, for limits in money",
	commands: []commandSpec{{
		use:   "list",
		short: "Lists the prices",
		sql: `SELECT p.model, nullif(p.valid, '(,)') AS valid, p.input, p.cache_read, p.cache_write, p.output,
	p.above, p.above_input, p.above_cache_read, p.above_cache_write, p.above_output, p.parts, p.tiers,
	p.max_output, p.comment, p.source
FROM rate_limit_prices p ORDER BY p.model, lower(p.valid) NULLS FIRST`,
	}, {
		use:   "set MODEL SETTING=VALUE ...",
		short: "Creates a price, or changes it",
		long: `Prices are for a million tokens, of search and request for one. A name that ends in * is a
pattern. cache_write is input by default. Beyond above tokens of input, above_input, above_output,
above_cache_read and above_cache_write hold. valid is FROM..UNTIL, where either may be missing, and
selects the price, so that a new one can begin at a time (default: the price in force). parts is
PART=PRICE or, above N tokens of input, PART@N=PRICE, with commas between them, where PART is input,
output, cache_read, cache_write, cache_write_1h, audio_input, audio_cache_read, audio_output,
image_input, image_output, search or request. tiers is TIER=FACTOR or TIER.PART=PRICE.`,
		example: `prices set 'gpt-4o*' input=2.5 cache_read=1.25 output=10
prices set gpt-4o input=2 output=8 valid=2027-01-01..
prices set gpt-4o parts=audio_input=40,input@128000=5,output@128000=20,search=0.01
prices set gpt-4o tiers=flex=0.5,priority.input=4.25,priority.output=17`,
		flags: []flag{forcePrice},
		runGo: setPrice,
	}, importCommand, correctCommand, {
		use:      "delete MODEL",
		short:    "Deletes the prices of a model",
		doneText: "deleted",
		sql:      "SELECT WHERE rate_limit_delete_price(@MODEL)",
	}},
}

var tiersCommand = commandSpec{
	use: "tiers", noun: "tier",
	short: "Lists and changes tiers, the plans of users",
	commands: []commandSpec{{
		use:   "list",
		short: "Lists the tiers, each with its rules and its numbers of users and keys",
		sql:   "SELECT * FROM rate_limit_tier_states ORDER BY rank, tier",
	}, {
		use:     "set TIER [SETTING=VALUE ...]",
		short:   "Creates a tier, or changes its settings",
		example: "tiers set pro rank=2 comment='49 dollars a month'",
		runGo:   setter("rate_limit_tier"),
	}, {
		use:      "rename TIER NEW",
		short:    "Renames a tier, also in its users, keys, overrides and rules",
		doneText: "renamed to",
		sql:      "SELECT WHERE rate_limit_rename('tier', @TIER, @NEW)",
	}, {
		use:      "delete TIER",
		short:    "Deletes a tier that nothing uses",
		doneText: "deleted",
		sql:      "SELECT WHERE rate_limit_delete_tier(@TIER)",
	}},
}

var changesCommand = commandSpec{
	use:   "changes",
	short: "Lists the changes of the policy, newest first",
	long:  "--json prints the rows before and after each change.",
	flags: []flag{
		{name: "since", value: "1h", kind: duration, usage: "only changes of the last 30m, 24h, 7d …"},
		linesFlag("100"),
	},
	jsonOnly:  "ref key_id before after",
	emptyText: "Nothing was changed.",
	sql: `SELECT * FROM rate_limit_changed WHERE at >= now() - @since::interval
ORDER BY at DESC, seq DESC LIMIT @number::bigint`,
}

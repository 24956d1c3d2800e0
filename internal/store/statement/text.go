package statement

import (
	"strconv"
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// firstValue is the number of the first parameter of parametersOf. Parameter 1 is the Clock, 2 has the
// prefixes, and 3 the keys.
const firstValue = 4

// claimedSQL is a time in the window of the refunded charge, or NULL. $8 is the claim: see parametersOf.
const claimedSQL = `(timestamptz 'epoch'
	+ nullif(($8::bigint[])[excluded.ord], 0) * interval '1 microsecond')`

// Names of the tables. The npm library pg-ratelimit shares the first two.
const (
	ephemeralTable = "rate_limit_ephemeral"
	durableTable   = "rate_limit_durable"
	processesTable = "rate_limit_processes"
	ledgerTable    = "rate_limit_ledger"
)

func tableName(durable bool) string {
	if durable {
		return durableTable
	}
	return ephemeralTable
}

// Kind selects what a statement does with its rows.
type Kind uint8

// The kinds of statements.
const (
	Charge Kind = iota
	Peek
	Refund
	Reset
	Release // releases slots
	Settle  // charges what settlements in the ledger say, and ends what their requests hold
)

// Key has the properties that determine the SQL of a statement.
type Key struct {
	Kind         Kind
	Definition   *algorithm.Definition
	Durable      bool
	Sync         bool // the commit waits for the disk and for a synchronous standby
	AllOrNothing bool // a charge of a transaction that fails if a row grants less
	Uniform      bool // a charge or settlement of entries with one limit and one cost
}

// templates are the statements by Kind.
var templates = []string{chargeSQL, peekSQL, refundSQL, resetSQL, releaseSQL, settleSQL}

// Text is the text of a statement.
type Text struct {
	SQL        string
	Parameters []Parameter // those after Clock, the prefixes and the keys
}

// Table is a table of counts.
type Table struct {
	Name string // quoted for SQL, with its schema if needed
	// Guard is SQL that each statement on the table evaluates. It raises an error if the table has moved.
	// It begins with a comma, such as ", check()", to continue a list of values. "" adds nothing.
	Guard string
}

// Texts writes the texts of the statements that a store runs.
type Texts struct {
	// Index disables the plans that do not use the primary key, for the rest of the transaction. It has the
	// guard of one table, if there is one: the tables of a shard move together.
	Index   string
	Guarded bool // the tables have guards

	tables map[string]Table // by their default names; does not change
	mu     sync.Mutex       // guards texts
	texts  map[Key]*Text    // the texts that were written before
}

// New returns Texts on tables, by their default names. nil stands for the default tables.
func New(tables map[string]Table) *Texts {
	if tables == nil {
		tables = map[string]Table{}
		for _, name := range []string{ephemeralTable, durableTable, processesTable, ledgerTable} {
			tables[name] = Table{Name: name}
		}
	}
	s := &Texts{texts: map[Key]*Text{}, tables: tables, Index: indexSQL,
		Guarded: tables[ephemeralTable].Guard != ""}
	if s.Guarded {
		s.Index += guardedSQL + tables[ephemeralTable].Guard
	}
	return s
}

// Of returns the text of a statement.
func (s *Texts) Of(key Key) *Text {
	s.mu.Lock()
	text := s.texts[key]
	if text == nil {
		text = s.write(key)
		s.texts[key] = text
	}
	s.mu.Unlock()
	return text
}

// Parameter is a named value of each entry of a statement, and its type in SQL.
type Parameter struct{ Name, Type string }

// parametersOf returns the parameters that hold the values of a statement's entries.
func parametersOf(key Key) []Parameter {
	needs := key.Definition.SQL.Needs
	names := map[Kind]string{Charge: "n cost quota span " + needs, Refund: "cost quota span events claim",
		Settle: "n span first held rest " + needs, Release: "n first"}
	var parameters []Parameter
	for _, name := range strings.Fields(names[key.Kind]) {
		kind := "bigint"
		if name == "unit" || name == "zone" || name == "sums" {
			kind = "text"
		}
		parameters = append(parameters, Parameter{name, kind})
	}
	return parameters
}

// Varies reports whether a parameter has an element for each entry even in a statement that is Uniform.
func Varies(p Parameter) bool {
	return p.Name == "n" || p.Name == "sums" || p.Name == "held" || p.Name == "rest"
}

// write writes the text of a statement.
func (s *Texts) write(key Key) *Text {
	parameters := parametersOf(key)
	var inserted, updated []string // the values of an entry, for a new row and for one that exists
	values := ""
	for i, p := range parameters {
		parameter := "$" + strconv.Itoa(firstValue+i) + "::" + p.Type
		ofNew, ofOld := parameter, parameter
		if !key.Uniform || Varies(p) {
			values += ", unnest(" + parameter + "[]) AS " + p.Name
			ofNew, ofOld = "i."+p.Name, "("+parameter+"[])[excluded.ord]"
		}
		inserted = append(inserted, "{"+p.Name+"}", ofNew)
		updated = append(updated, "{"+p.Name+"}", ofOld)
	}
	updated = append(updated, "{most}", "excluded.granted", "{now}", "(SELECT now FROM clock)", "{claimed}",
		claimedSQL)
	granted := grantedSQL
	if key.AllOrNothing {
		granted = allGrantedSQL
	}
	step := *key.Definition.SQL
	if key.Kind == Settle {
		step.Fresh, step.Step = algorithm.SettlingSQL(key.Definition)
		step.Columns = "remainder, " + step.Columns
		step.Grants = "n"
	}
	// A Uniform statement has one prefix and one window, w, and its keys are sorted. Any other has them for
	// each entry, and sorts the entries.
	prefix, order, once, from := "$2::text", "", ", w AS MATERIALIZED ("+step.Window+")", ", w"
	if !key.Uniform {
		values += ", unnest($2::text[]) AS prefix"
		prefix, order, once, from = "i.prefix", orderSQL, "", ", LATERAL ("+step.Window+") w"
	}
	if step.Window == "" {
		once, from = "", ""
	}
	returned := step.Returned
	if key.Kind == Peek {
		returned = step.PeekReturned
	}
	if step.ReadExpires {
		returned += ", expires_at"
	}
	t := s.tables[tableName(key.Durable)]
	prelude := lockSQL + t.Guard // the lock timeout also bounds the guard
	switch {
	case key.Kind == Peek:
		prelude = ""
	case key.Kind == Release && key.Durable && !key.Sync:
		prelude = diskSQL + prelude
	default:
		prelude = commitSQL(key.Sync) + prelude
	}
	grants := "least(n, {quota} / {cost})"
	if step.Grants != "" {
		grants = step.Grants
	}
	insert := func(text string) string { return s.fill(text, t, inserted...) }
	update := func(text string) string { return s.fill(text, t, updated...) }
	return &Text{Parameters: parameters, SQL: strings.NewReplacer("{prelude}", prelude, "{table}", t.Name,
		"{prefix}", prefix, "{values}", values, "{order}", order, "{columns}", step.Columns,
		"{granted}", granted, "{returned}", update(returned), "{reset}", step.Reset,
		"{fresh}", insert(step.Fresh), "{once}", insert(once), "{from}", insert(from),
		"{grants}", insert(grants),
		"{step}", update(step.Step), "{adjust}", update(step.Adjust),
		"{adjust_where}", update(step.AdjustWhere), "{ends}", update(endsSQL)).Replace(templates[key.Kind])}
}

// Cleanup returns a statement that deletes expired rows of a prefix. Its parameters are Clock, the prefix,
// and the microseconds since they expired. holds is set if requests of the process have held slots or units.
func (s *Texts) Cleanup(durable, holds bool) string {
	free := "coalesce(slots, '{}') = '{}' AND held IS NULL"
	if holds {
		free = "(slots IS NULL OR NOT " + algorithm.LiveSQL + ") AND (held IS NULL OR " +
			algorithm.LiveHeldSQL + " = 0)"
	}
	t := s.tables[tableName(durable)]
	return s.fill(cleanupSQL, t, "{prelude}", commitSQL(false), "{free}", s.fill(free, t))
}

// NextPrefix returns a statement that finds the first prefix of a table after its parameter.
func (s *Texts) NextPrefix(durable bool) string {
	return s.fill(nextPrefixSQL, s.tables[tableName(durable)])
}

// OnProcesses returns a pipeline that runs a statement on the table of processes, after the guard if there is
// one. Its commit waits for no standby: a failover ends names that the standby lacks.
func (s *Texts) OnProcesses(statement *pgdb.Statement) []*pgdb.Statement {
	t := s.tables[processesTable]
	statement.SQL = s.fill(statement.SQL, t)
	prelude := "SELECT true" + diskSQL
	if t.Guard != "" {
		prelude += guardedSQL + t.Guard
	}
	return []*pgdb.Statement{{SQL: prelude, Joined: true, Unnamed: true}, statement}
}

// Ledger returns a statement that adds settlements to the ledger, before those of the Kind Settle. Its
// parameters are Clock, the number of settlements, and a list of batch.Bill as JSON. sync is that of Key.
func (s *Texts) Ledger(sync bool) string {
	t := s.tables[ledgerTable]
	return s.fill(ledgerSQL, t, "{prelude}", commitSQL(sync)+lockSQL+t.Guard, "{parts}", partsSQL,
		"{typed}", strings.ReplaceAll(partsSQL, ",", " bigint,")+" bigint")
}

// guardedSQL precedes a guard in a statement without lockSQL, and bounds the guard's wait for locks.
const guardedSQL = `, set_config('lock_timeout', '200', true)`

// fill returns a text with values for its placeholders: the pairs of values, and the names of a table and of
// the processes table.
func (s *Texts) fill(text string, t Table, values ...string) string {
	return strings.NewReplacer(append([]string{"{table}", t.Name, "{processes}",
		s.tables[processesTable].Name}, values...)...).Replace(text)
}

// commitSQL returns the setting that turns off the commit's wait for the disk and for standbys, or "" if the
// commit has to wait. A commit that changes only an unlogged table waits, too, if the server has written to
// its log for another reason, such as the pruning of a page of a catalog.
func commitSQL(sync bool) string {
	if sync {
		return ""
	}
	return asyncSQL
}

// IsOnPurpose reports whether a statement failed because Check has found that a row granted too little. No
// other statement of this package reads a number from a text that it does not write.
func IsOnPurpose(s *pgdb.Statement) bool { return s.Code == pg.InvalidText }

package engine_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// simColumns returns the columns that a statement of an algorithm returns.
func simColumns(d *algorithm.Definition, r *algorithm.Row) [][]byte {
	tokens := int8(int64(math.Float64bits(r.Tokens)))
	switch d.Name {
	case "fixed_window", "sliding_window":
		return [][]byte{int8(r.Count), int8(r.PrevCount), simTime(r.Start)}
	case "token_bucket":
		if !r.HasTokens {
			tokens = nil
		}
		return [][]byte{tokens, simTime(r.Refill)}
	case "gcra":
		if !r.HasTokens {
			tokens = nil
		}
		return [][]byte{tokens, simTime(r.Refill), int8(r.Remainder)}
	case "sliding_log":
		array := make([]byte, 20) // the driver reads only the elements
		for _, at := range r.Hits {
			array = append(append(array, int4(8)...), simTime(at)...)
		}
		return [][]byte{array}
	}
	panic("the model does not support: " + d.Name)
}

// simTime returns a timestamptz; 0 is NULL.
func simTime(micros int64) []byte {
	if micros == 0 {
		return nil
	}
	return int8(micros - algorithm.PostgresEpoch)
}

// isLive implements schema.NodeIsLive.
func (n simNode) isLive() bool { return n.seen > simNow()-10_000_000 }

// executeOther executes a statement that neither reads nor writes rows of counts. partial is set if an
// earlier take of the transaction granted too little.
func (s *simServer) executeOther(st *simStatement, a *pgdb.Statement, partial bool) {
	is := func(start string) bool { return strings.HasPrefix(st.sql, start) }
	switch {
	case is("SELECT CASE current_setting('pg_ratelimit.short'"):
		if partial {
			failStatement(a, "22P02", engine.OnPurpose)
		}
	case s.executeProcess(st, a) || s.executeLedger(st, a):
	case is("SELECT set_config"), is("SELECT true, set_config"):
		addRow(a, []byte(""))
	case st.sql == schema.StateSQL:
		addRow(a, []byte(`{"number":1}`))
	case st.sql == schema.Locked:
		addRow(a, int4(0))
	case st.sql == engine.ServerSQL:
		addRow(a, []byte(s.identity()))
	case is("SELECT rate_limit_heartbeat"):
		n := simNode{}
		if st.args[2] != nil {
			n.seen = simNow()
		}
		s.setNode(nodeKey(st), n)
		addRow(a, []byte(""))
	case is("SELECT " + schema.MissingGrants):
		addRow(a, nil, nil)
	case is("SELECT rate_limit_live_proxies"):
		live := int64(0)
		for _, n := range s.nodes {
			if n.isLive() {
				live++
			}
		}
		addRow(a, int8(live))
	case is("SELECT string_agg(problem"), is("SELECT prefix FROM"):
	case strings.Contains(st.sql, "deleted AS (DELETE FROM"):
		addRow(a, int8(0)) // the model keeps expired rows for the checks
	default:
		s.executePolicy(st, a)
	}
}

// nodeKey returns the key of a registry row: the first two arguments of a statement.
func nodeKey(st *simStatement) string { return fmt.Sprint(st.args[0], " ", st.args[1]) }

// setNode changes a registry row.
func (s *simServer) setNode(name string, n simNode) {
	before := s.nodes[name]
	s.recordChange(true, func() { s.nodes[name] = before })
	s.nodes[name] = n
}

// simRule is the row of the only rule of the policy. simWhole ends each result, to show that the result is
// complete.
const (
	simRule = `{"Rule":{"name":"plan","family":"plan","priority":100,"mode":"enforce","action":"limit",` +
		`"count_by":["user"],"cost":1,"Limits":[{"Name":"requests",` +
		`"Limit":{"Algorithm":2,"Events":40,"Window":10000000000,"Durable":true}}]}}`
	simWhole = `{"Whole" : true}`
)

// identity implements schema.ServerIdentity.
func (s *simServer) identity() string { return fmt.Sprint(s.started, " 8") }

// executePolicy executes a policy's statement.
func (s *simServer) executePolicy(st *simStatement, a *pgdb.Statement) {
	is := func(start string) bool { return strings.HasPrefix(st.sql, start) }
	switch {
	case is("SELECT 'answers'"):
		addRow(a, []byte("answers"))
	case strings.Contains(st.sql, "pg_current_snapshot"):
		addRow(a, fmt.Appendf(nil, `{"Snapshot":"%d","Applied":%d,"Server":"%s"}`, s.changes, s.changes,
			s.identity()))
		if since, ok := st.args[0].(string); ok {
			from, _ := strconv.Atoi(since)
			for ; from < s.changes; from++ {
				addRow(a, []byte(`{"Kind":"rule","Ref":"plan"}`))
			}
		}
	case is("SELECT a::text FROM (SELECT json_build_object('Rule'"):
		addRow(a, []byte(simRule))
		addRow(a, []byte(simWhole))
	case is("SELECT a::text FROM ("): // bans
		addRow(a, []byte(simWhole))
	case is("SELECT json_build_object('Identity'"):
		for _, user := range st.args[1].([]string) {
			addRow(a, []byte(`{"Identity":{"Tier":"free","User":"`+user+`","Known":true}}`))
		}
		addRow(a, []byte(simWhole))
	case is("SELECT x.region"), is("SELECT region, state"), is("SELECT rate_limit_ledger_upkeep"),
		is("SELECT rate_limit_notice_upkeep"), is("SELECT least(units"):
	case is("SELECT rate_limit_totals_upkeep"):
		addRow(a, int4(0))
	case is("SELECT rate_limit_forget"):
		addRow(a, []byte("0"))
	default:
		s.violations = append(s.violations, "the model does not support: "+st.sql)
	}
}

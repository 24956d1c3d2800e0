package engine_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
)

// simColumns returns the columns that a statement of an algorithm returns.
func simColumns(d *algorithm.Definition, r *algorithm.Row) [][]byte {
	tokens := simBigint(int64(math.Float64bits(r.Tokens)))
	switch d.Name {
	case "fixed_window", "sliding_window":
		return [][]byte{simBigint(r.Count), simBigint(r.PrevCount), simTime(r.Start)}
	case "token_bucket":
		if !r.HasTokens {
			tokens = nil
		}
		return [][]byte{tokens, simTime(r.Refill)}
	case "gcra":
		if !r.HasTokens {
			tokens = nil
		}
		return [][]byte{tokens, simTime(r.Refill), simBigint(r.Remainder)}
	case "sliding_log":
		array := make([]byte, 20) // only the elements are read
		for _, at := range r.Hits {
			array = append(append(array, int4(8)...), simTime(at)...)
		}
		return [][]byte{array}
	}
	panic("no such algorithm in the model: " + d.Name)
}

func simBigint(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// simTime returns a timestamptz; 0 is NULL.
func simTime(micros int64) []byte {
	if micros == 0 {
		return nil
	}
	return simBigint(micros - algorithm.PostgresEpoch)
}

// add adds columns to an answer; nil is NULL.
func (a *simAnswer) add(columns ...[]byte) {
	for _, c := range columns {
		size := int64(len(c))
		if c == nil {
			size = -1
		}
		a.result = append(append(a.result, int4(size)...), c...)
	}
}

// addTexts adds rows of one or more texts.
func (a *simAnswer) addTexts(columns ...string) {
	for _, c := range columns {
		a.add([]byte(c))
	}
	a.rows++
}

// fail turns an answer into an error of the server.
func (a *simAnswer) fail(code, text string) {
	a.err = fmt.Errorf("%s (SQLSTATE %s)", text, code)
	a.code = code
}

// nodeIsLive is schema.NodeIsLive.
func (n simNode) live() bool { return n.seen > simNow()-10_000_000 }

// others executes a statement that reads or writes no rows of counts.
func (s *simServer) others(st *simStatement, a *simAnswer, short bool) {
	is := func(beginning string) bool { return strings.HasPrefix(st.sql, beginning) }
	switch {
	case is("SELECT CASE current_setting('pg_ratelimit.short'"):
		if short {
			a.fail("22P02", engine.OnPurpose)
		}
	case is("SELECT set_config"):
		a.addTexts("")
	case st.sql == engine.ServerSQL:
		a.addTexts(s.identity())
	case is("WITH gone AS (DELETE FROM rate_limit_nodes"):
		s.setNode(nodeKey(st), simNode{seen: simNow()})
	case is("SELECT coalesce(" + schema.MissingGrants):
		a.addTexts("")
	case is("SELECT count(*) FROM rate_limit_nodes"):
		live := int64(0)
		for _, n := range s.nodes {
			if n.live() {
				live++
			}
		}
		a.add(simBigint(live))
		a.rows = 1
	case is("UPDATE rate_limit_nodes SET ended"):
		s.setNode(nodeKey(st), simNode{})
	case is("SELECT string_agg(problem"), is("SELECT prefix FROM"):
	case strings.Contains(st.sql, "deleted AS (DELETE FROM"):
		a.add(simBigint(0)) // rows are never cleaned up: the checks need them
		a.rows = 1
	default:
		s.policy(st, a)
	}
}

// nodeKey returns the key of a row of the registry: the first two arguments of a statement.
func nodeKey(st *simStatement) string { return fmt.Sprint(st.args[0], " ", st.args[1]) }

// setNode changes a row of the registry.
func (s *simServer) setNode(name string, n simNode) {
	before := s.nodes[name]
	s.change(true, func() { s.nodes[name] = before })
	s.nodes[name] = n
}

// simRule is the row of the rule, and simWhole the row after all others.
const (
	simRule = `{"Rule":{"name":"plan","family":"plan","priority":100,"mode":"enforce","action":"limit",` +
		`"count_by":["user"],"cost":1,"Limits":[{"Name":"requests",` +
		`"Limit":{"Algorithm":2,"Events":40,"Window":10000000000,"Durable":true}}]}}`
	simWhole = `{"Whole" : true}`
)

// identity implements schema.ServerIdentity.
func (s *simServer) identity() string { return fmt.Sprint(s.started, " 8") }

// policy answers a statement of a policy.
func (s *simServer) policy(st *simStatement, a *simAnswer) {
	is := func(beginning string) bool { return strings.HasPrefix(st.sql, beginning) }
	switch {
	case is("SELECT 'answers'"):
		a.addTexts("answers")
	case strings.Contains(st.sql, "pg_current_snapshot"):
		a.addTexts(fmt.Sprintf(`{"Snapshot":"%d","Applied":%d,"Server":"%s"}`, s.changes, s.changes,
			s.identity()))
		if since, ok := st.args[0].(string); ok {
			from, _ := strconv.Atoi(since)
			for ; from < s.changes; from++ {
				a.addTexts(`{"Kind":"rule","Ref":"plan"}`)
			}
		}
	case is("SELECT a::text FROM (SELECT json_build_object('Rule'"):
		a.addTexts(simRule)
		a.addTexts(simWhole)
	case is("SELECT a::text FROM (SELECT json_build_object("): // bans
		a.addTexts(simWhole)
	case is("SELECT json_build_object('Digest'"):
		for _, user := range st.args[1].([]string) {
			a.addTexts(`{"Identity":{"Tier":"free","User":"` + user + `","Known":true}}`)
		}
		a.addTexts(simWhole)
	case is("SELECT x.region"), is("SELECT region, state"):
	case is("SELECT rate_limit_forget"):
		a.addTexts("0")
	default:
		s.broken = append(s.broken, "the model does not understand: "+st.sql)
	}
}

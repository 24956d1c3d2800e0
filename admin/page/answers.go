package page

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout bounds the time for which a request waits for a new answer. After it, the request gets
	// the previous answer, or an error if there is none.
	answerTimeout = 1200 * time.Millisecond
	// askTimeout bounds each statement except that of the question "state".
	askTimeout = 20 * time.Second
	// stateTimeout bounds the statement of the question "state". It is below answerTimeout, so that during an
	// outage the statement fails while the request still waits. The request then gets the error instead of
	// the previous answer, and the page reports the outage within two seconds.
	stateTimeout = time.Second
	// loadFactor is the ratio of the time for which an answer stays valid to the duration of its statement. A
	// question therefore keeps a connection busy for at most a twentieth of the time, for any number of open
	// pages.
	loadFactor = 20
	// maxAge is the age from which a previous answer is not returned: the request gets an error instead.
	maxAge = time.Minute
)

// question is a statement for the database; the rows that it returns are the answer. An answer stays valid
// for loadFactor times the duration of its statement, but at least for interval and at most for maxAge.
type question struct {
	data     dataset
	interval time.Duration
	sql      string
}

// stateQuestion is the question that pages ask most often. Its answer stays valid for its interval only.
const stateQuestion = "state"

// questions maps the names in the API to questions. Requests that ask the same question at the same time wait
// for one statement.
var questions = map[string]question{
	stateQuestion: {counterData, 400 * time.Millisecond, `
SELECT * FROM rate_limit_state`},
	"proxies": {counterData, time.Second, `
SELECT node, region, version, live, ended, cannot, policy, behind, late, seen, admitted, refused, undecided,
	locally FROM rate_limit_proxies ORDER BY node`},
	"minutes": {historyData, 2 * time.Second, `SELECT * FROM rate_limit_minutes
WHERE time > now() - interval '1 hour' ORDER BY time`},
	"changes": {policyData, 2 * time.Second, `
SELECT at, by, kind, which, what FROM rate_limit_changed
WHERE at > now() - interval '1 hour' ORDER BY at DESC, seq DESC LIMIT 50`},
	"refused": {historyData, 2 * time.Second, `
SELECT r.*, rate_limit_key_name(NULL, substring(prefix FROM '^rule/(.*)$'), name) AS key_name
FROM rate_limit_refused(now() - interval '1 hour') AS r`},
	"near": {policyData, 5 * time.Second, `
SELECT rule, limit_name, key, rate_limit_key_name(NULL, rule, key) AS key_name, used, held, quota, unit,
	percent, count(*) OVER () AS total
FROM rate_limit_near ORDER BY percent DESC, rule, limit_name, key LIMIT 50`},
	"money": {counterData, 5 * time.Second, `
SELECT s.*, (SELECT max(currency) FROM rate_limit_ledger_retention) AS currency FROM rate_limit_spent() s`},
	"corrections": {counterData, 5 * time.Second, `
SELECT * FROM rate_limit_corrections()`},
	"prices": {policyData, 5 * time.Second, `
SELECT p.model, lower(p.valid) AS since, upper(p.valid) AS until, p.input, p.output, ARRAY(
		SELECT rtrim(r.key, '.') || '=' || r.value FROM jsonb_each_text(rate_limit_rates(p)) r
		WHERE r.key NOT IN ('input', 'output') ORDER BY r.key) AS parts, count(*) OVER () AS total
FROM (SELECT DISTINCT ON (model) * FROM rate_limit_prices WHERE valid @> now()
	ORDER BY model, lower(valid) DESC NULLS LAST) AS p ORDER BY p.model LIMIT 50`},
	"notices": {counterData, 5 * time.Second, `
SELECT rule, limit_name, key, percent, used, quota, currency, at, void_at < 'infinity' AS void,
	count(*) OVER () AS total
FROM rate_limit_notices ORDER BY at DESC, rule, limit_name, key, percent DESC LIMIT 50`},
	"bans": {policyData, 2 * time.Second, `
SELECT kind, banned, until, reason, banned_at, banned_by, count(*) OVER () AS total
FROM rate_limit_banned ORDER BY banned_at DESC, id LIMIT 200`},
}

// refusals is the statement for the refusals of a sender. Its arguments are the sender and a time, as text.
var refusals = question{data: historyData, sql: `SELECT * FROM rate_limit_why($1, $2)`}

// answer is the latest answer to a question.
type answer struct {
	body      []byte
	err       error
	bodyTime  time.Time // when body was received
	nextStart time.Time // the statement does not run again before this time
}

// serveAPI responds with the answer to the question name.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	var body []byte
	var err error
	query := r.URL.Query()
	_, isQuestion := questions[name]
	switch {
	case name == "session":
		body, err = json.Marshal(map[string]string{"database": s.database, "version": s.options.Version})
	case name == "why":
		body, err = s.refusalsOf(r.Context(), query.Get("who"), cmp.Or(query.Get("at"), "now"))
	case isQuestion:
		body, err = s.latest(r.Context(), name)
	default:
		err = &failure{http.StatusNotFound, "", "there is no such question: " + name}
	}
	if err != nil {
		newFailure(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(hideKeys(body)) // an error means that the client has closed the connection
}

// refusalsOf returns the refusals of a sender up to a time. refusalsOf does not accept an API key as the
// sender, because the key would be in the URL, and so in logs.
func (s *Server) refusalsOf(ctx context.Context, sender, timeText string) ([]byte, error) {
	switch {
	case apiKeys.MatchString(sender):
		return nil, &failure{http.StatusBadRequest, "who",
			"who: must be no API key: ask by its number, such as #7"}
	case sender == "":
		return nil, &ratelimit.FieldError{Field: "who",
			Want: "a user, an address, # and the number of an API key, or the key of a counter"}
	}
	select {
	case s.senderQueries <- struct{}{}:
		defer func() { <-s.senderQueries }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.pools.rows(ctx, &refusals, askTimeout, sender, timeText)
}

// latest returns the latest answer to a question. If that answer is no longer valid, latest starts the
// statement again, and waits up to answerTimeout for its end before it returns the previous answer.
func (s *Server) latest(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	a := s.answerTo(name)
	if !time.Now().Before(a.nextStart) {
		select {
		case renewed := <-s.running.DoChan(name, func() (any, error) { return s.renew(name), nil }):
			a = renewed.Val.(answer)
		case <-ctx.Done():
			if a.err == nil && time.Since(a.bodyTime) > maxAge {
				return nil, &failure{http.StatusServiceUnavailable, "", "the database has not answered yet"}
			}
		}
	}
	return a.body, a.err
}

// answerTo returns the latest answer to a question, or the zero answer before the first one.
func (s *Server) answerTo(name string) (a answer) {
	if stored, ok := s.answers.Load(name); ok {
		a = stored.(answer)
	}
	return a
}

// renew runs a question's statement and stores the answer, unless another call has just done so.
func (s *Server) renew(name string) answer {
	a, q, start := s.answerTo(name), questions[name], time.Now()
	if start.Before(a.nextStart) {
		return a
	}
	timeout, most := askTimeout, maxAge
	if name == stateQuestion {
		timeout, most = stateTimeout, q.interval
	}
	body, err := s.pools.rows(s.closing, &q, timeout)
	end := time.Now()
	a.err, a.nextStart = err, end.Add(q.interval)
	if err == nil {
		lifetime := min(max(q.interval, loadFactor*end.Sub(start)), most)
		a.body, a.bodyTime, a.nextStart = body, end, end.Add(lifetime)
	}
	s.answers.Store(name, a)
	return a
}

// isMissing reports whether an error means that a table or a function does not exist.
func isMissing(err error) bool {
	pgErr, ok := pgError(err)
	return ok && (pgErr.Code == pg.UndefinedTable || pgErr.Code == pg.UndefinedFunction)
}

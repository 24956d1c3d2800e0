package page

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout bounds how long a request waits for the database. It then gets the last answer, if there
	// is one.
	answerTimeout = 1200 * time.Millisecond
	// askTimeout bounds a statement.
	askTimeout = 20 * time.Second
	// stateTimeout bounds the statement of the state. It is below answerTimeout, so that a request gets its
	// error and not the answer before it: the page says within two seconds that the database is away.
	stateTimeout = time.Second
	// share is the quotient of the time for which an answer is used and the time of its statement, so that
	// open pages load the server by at most a twentieth.
	share = 20
	// keep is the longest time for which an answer is used.
	keep = time.Minute
)

// question is a statement that returns the rows of an answer.
type question struct {
	of       dataset
	interval time.Duration // how long an answer is used at least
	longest  time.Duration // how long it is used at most before the question is asked again
	timeout  time.Duration
	sql      string
}

// questions are asked by their names. Many pages that ask at once share a statement.
var questions = map[string]question{
	"state": {ofCounters, 400 * time.Millisecond, 400 * time.Millisecond, stateTimeout, `
SELECT * FROM rate_limit_state`},
	"proxies": {ofCounters, time.Second, keep, askTimeout, `
SELECT node, region, version, live, ended, cannot, policy, behind, seen, admitted, refused, undecided, locally
FROM rate_limit_proxies ORDER BY node`},
	"minutes": {ofHistory, 2 * time.Second, keep, askTimeout, `SELECT * FROM rate_limit_minutes
WHERE time > now() - interval '1 hour' ORDER BY time`},
	"changes": {ofPolicy, 2 * time.Second, keep, askTimeout, `
SELECT at, by, kind, which, what FROM rate_limit_changed
WHERE at > now() - interval '1 hour' ORDER BY at DESC, seq DESC LIMIT 50`},
	"refused": {ofHistory, 2 * time.Second, keep, askTimeout, `
SELECT * FROM rate_limit_refused(now() - interval '1 hour')`},
	"near": {ofPolicy, 5 * time.Second, keep, askTimeout, `
SELECT rule, limit_name, key, used, quota, percent, count(*) OVER () AS total
FROM rate_limit_near ORDER BY percent DESC, rule, limit_name, key LIMIT 50`},
	"bans": {ofPolicy, 2 * time.Second, keep, askTimeout, `
SELECT kind, banned, until, reason, banned_at, banned_by, count(*) OVER () AS total
FROM rate_limit_banned ORDER BY banned_at DESC, id LIMIT 200`},
}

// why is asked with a sender and a time, "" for now.
var why = question{of: ofHistory, timeout: askTimeout,
	sql: `SELECT * FROM rate_limit_why($1, coalesce(nullif($2, '')::timestamptz, now()))`}

// answer is the last answer to a question.
type answer struct {
	mu   sync.Mutex // guards what follows
	text []byte
	err  error
	at   time.Time     // when text was read
	next time.Time     // when it is asked again
	done chan struct{} // is closed when the statement under way ends; nil: none is
}

// serveAPI answers a question.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	var text []byte
	var err error
	query := r.URL.Query()
	_, known := questions[name]
	switch {
	case name == "session":
		text, err = json.Marshal(map[string]string{"database": s.database, "version": s.options.Version})
	case name == "why":
		text, err = s.why(r.Context(), query.Get("who"), query.Get("at"))
	case known:
		text, err = s.last(r.Context(), name)
	default:
		err = &failure{http.StatusNotFound, "", "there is no such question: " + name}
	}
	if err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(hideKeys(text)) // an error means that the client has closed the connection
}

// why says why a sender was refused. An API key is not accepted as a sender, because logs contain the URL.
func (s *Server) why(ctx context.Context, who, at string) ([]byte, error) {
	switch {
	case apiKeys.MatchString(who):
		return nil, &failure{http.StatusBadRequest, "who",
			"who: must be no API key: ask by its number, such as #7"}
	case who == "":
		return nil, &ratelimit.FieldError{Field: "who",
			Want: "a user, an address, # and the number of an API key, or the key of a counter"}
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.pools.rows(ctx, &why, who, at)
}

// last returns the last answer to a question, and asks again if it is old.
func (s *Server) last(ctx context.Context, name string) ([]byte, error) {
	a := s.answers[name]
	a.mu.Lock()
	if a.done == nil && !time.Now().Before(a.next) {
		a.done = make(chan struct{})
		go s.ask(name, a)
	}
	done := a.done
	a.mu.Unlock()
	if done != nil {
		within, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		select {
		case <-done:
		case <-within.Done():
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return nil, a.err
	case a.text == nil || a.done != nil && time.Since(a.at) > keep:
		return nil, &failure{http.StatusServiceUnavailable, "", "the database has not answered yet"}
	}
	return a.text, nil
}

// ask asks a question, and ends what waits for its answer.
func (s *Server) ask(name string, a *answer) {
	q := questions[name]
	began := time.Now()
	text, err := s.pools.rows(s.closing, &q)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = time.Now().Add(q.interval)
	if err == nil {
		rest := min(max(q.interval, share*time.Since(began)), q.longest)
		a.next, a.at, a.text = time.Now().Add(rest), time.Now(), text
	}
	a.err = err
	close(a.done)
	a.done = nil
}

// absent reports whether an error is that the database has no such table or function.
func absent(err error) bool {
	of, answered := pgError(err)
	return answered && (of.Code == "42P01" || of.Code == "42883")
}

package policy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// identitiesSQL returns the API keys with the digests $1, and the users $2, each with its
// overrides and bans. It is planned each time, since the tables grow by orders of magnitude.
// The last row has the numbers of the tables. The server finds them after it has locked the
// tables, so they are those that were read.
var identitiesSQL = `SELECT 'key', a.digest, json_build_object('key', k.id, 'expires', ` + endSQL("k.expires_at") + `, 'revoked', ` + endSQL("k.revoked_at") + `, ` + userSQL + `,
	'overrides', (SELECT json_agg(` + overrideSQL + `) FROM rate_limit_overrides o WHERE (o.key_id = k.id OR o.user_id = k.user_id) AND ` + overrideDueSQL + `),
	'bans', (SELECT json_agg(` + banSQL + `) FROM rate_limit_bans b WHERE (b.key_id = k.id OR b.user_id = k.user_id) AND b.until > now()))::text
FROM unnest($1::text[]) AS a(digest) JOIN rate_limit_api_keys k ON k.digest = decode(a.digest, 'hex') JOIN rate_limit_users u ON u.user_id = k.user_id
UNION ALL
SELECT 'user', a.user_id, json_build_object(` + userSQL + `,
	'overrides', (SELECT json_agg(` + overrideSQL + `) FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND ` + overrideDueSQL + `),
	'bans', (SELECT json_agg(` + banSQL + `) FROM rate_limit_bans b WHERE b.user_id = a.user_id AND b.until > now()))::text
FROM unnest($2::text[]) AS a(user_id) LEFT JOIN rate_limit_users u ON u.user_id = a.user_id
UNION ALL
SELECT 'tables', ` + numbersSQL + `, ''`

var userSQL = `'user', u.user_id, 'tier', u.tier, 'tier_until', ` + endSQL("u.tier_until") + `, 'period', u.period_start::text, 'zone', CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END`

var banSQL = `json_build_object('user', b.user_id, 'key', b.key_id, 'until', ` + endSQL("b.until") + `, 'reason', b.reason)`

// identityJSON is an identity of identitiesSQL. NULL is the zero value. User is NULL if the
// database does not have the user.
type identityJSON struct {
	Key       int64          `json:"key"`
	Expires   *int64         `json:"expires"`
	Revoked   *int64         `json:"revoked"`
	User      *string        `json:"user"`
	Tier      string         `json:"tier"`
	TierUntil *int64         `json:"tier_until"`
	Period    string         `json:"period"`
	Zone      string         `json:"zone"`
	Overrides []overrideJSON `json:"overrides"`
	Bans      []banJSON      `json:"bans"`
}

type banJSON struct {
	User   string `json:"user"`
	Key    int64  `json:"key"`
	Until  *int64 `json:"until"`
	Reason string `json:"reason"`
}

// decodeIdentity fills in an identity.
func decodeIdentity(text string, id *Identity) error {
	var row identityJSON
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return err
	}
	id.KeyID = row.Key
	id.Known = row.User != nil
	if row.User != nil {
		id.User = *row.User
	}
	id.Tier = row.Tier
	id.TierUntil = timeOf(row.TierUntil)
	if row.Period != "" {
		day, err := time.Parse("2006-01-02", row.Period)
		if err != nil {
			return err
		}
		id.PeriodStart = day
	}
	id.TimeZone = row.Zone
	id.ExpiresAt = timeOf(row.Expires)
	id.RevokedAt = timeOf(row.Revoked)
	for i := range row.Overrides {
		id.Overrides = append(id.Overrides, row.Overrides[i].override())
	}
	for i := range row.Bans {
		b := &row.Bans[i]
		id.Bans = append(id.Bans, Ban{User: b.User, KeyID: b.Key, Until: timeOf(b.Until), Reason: b.Reason})
	}
	return nil
}

const (
	// lookUpMost is how many identities one statement looks up.
	lookUpMost = 1000
	// lookUpPause is the least time from the start of a statement to that of the next.
	lookUpPause = 5 * time.Millisecond
	// lazyPause takes the place of lookUpPause while all waiting look-ups only renew remembered
	// identities because of their age. A statement costs the database much more than an identity
	// in it.
	lazyPause = 500 * time.Millisecond
	// lookUpTimeout is for one statement.
	lookUpTimeout = 2 * time.Second
	// waitingMost bounds the identities that wait.
	waitingMost = 20000
	// staleMost is how many times an identity is looked up again because it was changed
	// during the look-up. After that the last answer counts, and is not kept.
	staleMost = 3
)

// errCrowded is for a look-up that finds too many others waiting.
var errCrowded = fmt.Errorf("%w: too many API keys and users wait to be looked up", ratelimit.ErrUnavailable)

// lookup is an identity that is looked up for one or more callers.
//
// States: waiting (in lookups.waiting), in flight (with the worker), done.
type lookup struct {
	sender   sender
	done     context.Context // ends when the look-up is done
	finish   context.CancelFunc
	attempts int // used by the worker alone

	// Set before finish is called.
	identity *Identity
	err      error
}

// sender is what an identity is looked up by: the digest of an API key, or a user that the
// proxy authenticated.
type sender struct {
	digest [32]byte
	user   string // "" for an API key
}

// name is the sender's name in the cache.
func (s sender) name() string {
	if s.user != "" {
		return NameOfUser(s.user)
	}
	return NameOfKey(s.digest)
}

// lookups looks identities up and caches them. It sends one statement at a time, for many
// identities. If an identity is evicted from the cache during a statement, the answer may have
// the state from before the change: the identity is looked up again.
type lookups struct {
	db    postgres.DB
	cache *Identities
	now   func() time.Time

	mu      sync.Mutex // guards all that follows
	waiting []*lookup
	byName  map[string]*lookup // those that wait or are in flight
	urgent  bool               // callers may wait for the look-ups in waiting
	working bool               // a worker runs
	started time.Time          // the last statement
	down    error              // why the database does not answer; nil if it does
	tables  string             // those that were polled last; "" before the first poll
	closed  bool
	sent    int64 // statements
}

func newLookups(db postgres.DB, cache *Identities, now func() time.Time) *lookups {
	return &lookups{db: db, cache: cache, now: now, byName: make(map[string]*lookup)}
}

// get looks a sender up. The error is ratelimit.ErrUnavailable while the database does not
// answer, and ratelimit.ErrTimeout if it does not answer within the timeout; the look-up then
// goes on, for the next request.
func (l *lookups) get(ctx context.Context, timeout time.Duration, s sender) (*Identity, error) {
	call, err := l.enter(s, true)
	if err != nil {
		return nil, err
	}
	if err := waitFor(ctx, call.done, timeout); err != nil {
		return nil, err
	}
	return call.identity, call.err
}

// waitFor waits until done ends. The interpreter allows no select here, see package batch.
func waitFor(ctx, done context.Context, timeout time.Duration) error {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(done, cancel)
	defer stop()
	<-within.Done()
	if done.Err() != nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ratelimit.ErrTimeout
}

// renew looks up a sender that is remembered, for later requests.
func (l *lookups) renew(s sender) { _, _ = l.enter(s, false) }

// enter adds a sender to those that wait, unless the sender waits already or is in flight.
func (l *lookups) enter(s sender, urgent bool) (*lookup, error) {
	name := s.name()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ratelimit.ErrClosed
	}
	if l.down != nil {
		return nil, l.down
	}
	l.urgent = l.urgent || urgent
	call := l.byName[name]
	if call != nil {
		return call, nil
	}
	if len(l.waiting) >= waitingMost {
		return nil, errCrowded
	}
	if s.user != "" {
		s.user = name[1:] // a copy: that of the request may be a part of a long text
	}
	call = &lookup{sender: s}
	call.done, call.finish = context.WithCancel(context.Background())
	l.byName[name] = call
	l.waiting = append(l.waiting, call)
	if !l.working {
		l.working = true
		go l.work()
	}
	return call, nil
}

// work sends statements until nothing waits.
func (l *lookups) work() {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.working = false
			l.mu.Unlock()
			return
		}
		age := time.Since(l.started)
		n := len(l.waiting)
		if age < lookUpPause || age < lazyPause && !l.urgent && n < lookUpMost {
			l.mu.Unlock()
			time.Sleep(lookUpPause)
			continue
		}
		if n > lookUpMost {
			n = lookUpMost
		}
		flight := append([]*lookup(nil), l.waiting[:n]...)
		l.waiting = append([]*lookup(nil), l.waiting[n:]...)
		l.urgent = l.urgent && len(l.waiting) > 0
		l.started = time.Now()
		l.sent++
		l.mu.Unlock()

		generation := l.cache.Generation()
		var found map[string]answer
		var tables string
		var err error
		if failure := batch.PanicError(func() { found, tables, err = lookUp(l.db, flight) }); failure != nil {
			err = failure
		}
		l.land(flight, found, tables, err, generation)
	}
}

// land takes in the answer of a statement that began at a generation of the cache. An answer
// from other tables than those that were polled counts for nothing: a restore may be under way.
func (l *lookups) land(flight []*lookup, found map[string]answer, tables string, err error, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && errors.Is(err, ratelimit.ErrUnavailable) && !l.closed {
		// The waiting look-ups would fail as well, one timeout later.
		l.down = err
		flight = append(flight, l.waiting...)
		l.waiting = nil
	}
	others := err == nil && l.tables != "" && tables != l.tables
	now := l.now()
	var again []*lookup
	for _, call := range flight {
		name := call.sender.name()
		a := found[name]
		if a.err == nil {
			a.err = err
		}
		if a.identity == nil && a.err == nil {
			a.identity = &Identity{Digest: call.sender.digest, User: call.sender.user}
		}
		call.attempts++
		if others && call.attempts > staleMost {
			a = answer{err: errOtherTables}
		}
		if a.err == nil && (others || l.cache.Add([]*Identity{a.identity}, generation, now) > 0) && call.attempts <= staleMost && !l.closed {
			again = append(again, call)
			continue
		}
		call.identity = a.identity
		call.err = a.err
		delete(l.byName, name)
		call.finish()
	}
	l.urgent = l.urgent || len(again) > 0
	l.waiting = append(again, l.waiting...)
}

// setDown says whether the database answers.
func (l *lookups) setDown(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
}

// setTables says which tables were polled.
func (l *lookups) setTables(tables string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tables = tables
}

// unavailable returns why nothing can be looked up, or nil.
func (l *lookups) unavailable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// statements is how many statements were sent.
func (l *lookups) statements() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// close fails the look-ups that wait, and all later ones.
func (l *lookups) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, call := range l.waiting {
		call.err = ratelimit.ErrClosed
		delete(l.byName, call.sender.name())
		call.finish()
	}
	l.waiting = nil
}

// answer is what the database says of a sender.
type answer struct {
	identity *Identity
	err      error // of this sender alone
}

// lookUp looks senders up in one statement, and returns in which tables. Senders that the database does not have are not in
// the result. lookUp does not ask for a user with a name that no row can have: such a name would
// make the statement fail for all.
func lookUp(db postgres.DB, calls []*lookup) (found map[string]answer, tables string, err error) {
	digests := []string{}
	users := []string{}
	for _, call := range calls {
		user := call.sender.user
		if user == "" {
			digests = append(digests, hex.EncodeToString(call.sender.digest[:]))
		} else if len(user) <= ratelimit.MaxKey && utf8.ValidString(user) && strings.IndexByte(user, 0) < 0 {
			users = append(users, user)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
	defer cancel()
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: identitiesSQL, Args: []any{digests, users}, Unnamed: true}, 3)
	if err != nil {
		return nil, "", fmt.Errorf("looking up API keys and users: %w", err)
	}
	found = make(map[string]answer, len(rows)/3)
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "tables" {
			tables = rows[i+1]
			continue
		}
		s := sender{}
		if rows[i] == "user" {
			s.user = rows[i+1]
		} else {
			s.digest = digestOf(rows[i+1])
		}
		id := &Identity{}
		if err := decodeIdentity(rows[i+2], id); err != nil {
			found[s.name()] = answer{err: fmt.Errorf("looking up an API key or a user: %w", err)}
			continue
		}
		id.Digest = s.digest
		if s.user != "" {
			id.User = s.user
		}
		found[s.name()] = answer{identity: id}
	}
	return found, tables, nil
}

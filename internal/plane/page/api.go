package page

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// mostBody is how long the body of a POST may be.
	mostBody = 1 << 16
	// bodyTimeout is for one body.
	bodyTimeout = 10 * time.Second
)

var errNoAnswer = errors.New("there is no answer yet")

// question answers a request with a value.
type question func(s *Server, r *http.Request) (any, error)

// The questions by method and name.
var questions = map[string]question{
	"GET session":   (*Server).session,
	"GET state":     func(s *Server, r *http.Request) (any, error) { return s.state(r) },
	"GET proxies":   sectionOf("proxies"),
	"GET limits":    sectionOf("limits"),
	"GET near":      sectionOf("near"),
	"GET bans":      asked(ofPolicy, func(ctx context.Context, db *admin.Database, _ *http.Request) (any, error) { return listBans(ctx, db) }),
	"GET changes":   asked(ofPolicy, listChanges),
	"GET top":       asked(ofHistory, topSince),
	"GET usage":     asked(ofHistory, usageOfUser),
	"GET names":     asked(ofPolicy, listNames),
	"POST why":      (*Server).why,
	"POST explain":  asked(ofPolicy, explain),
	"POST counters": asked(ofCounters, counters),
}

// serveAPI answers a question, or does an action.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if method == http.MethodGet && name == "events" {
		s.serveEvents(w, r)
		return
	}
	if method == http.MethodPost {
		if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
			(&failure{http.StatusUnsupportedMediaType, "", "the body must be application/json"}).write(w)
			return
		}
		if failed := readWhole(w, r); failed != nil {
			failed.write(w)
			return
		}
	}
	ask := questions[method+" "+name]
	if ask == nil && method == http.MethodPost && s.options.Write {
		if act := actions[name]; act != nil {
			ask = func(s *Server, r *http.Request) (any, error) { return s.act(r, name, act) }
		}
	}
	if ask == nil {
		text := "there is no such question: " + name
		if actions[name] != nil {
			text = "nothing can be changed here: the page is without `write`, or the method is not POST"
		}
		(&failure{http.StatusNotFound, "", text}).write(w)
		return
	}
	value, err := ask(s, r)
	if err != nil {
		failureOf(err).write(w)
		return
	}
	writeJSON(w, http.StatusOK, value)
}

func sectionOf(name string) question {
	return func(s *Server, r *http.Request) (any, error) {
		sections, err := s.state(r, name)
		if err != nil {
			return nil, err
		}
		return sections[name], nil
	}
}

// asked is a question that is asked on a connection to the database of a dataset.
func asked(of dataset, ask func(ctx context.Context, db *admin.Database, r *http.Request) (any, error)) question {
	return func(s *Server, r *http.Request) (value any, err error) {
		err = s.databases.ask(r.Context(), func(ctx context.Context, c *connections) error {
			db, err := c.at(ctx, of)
			if err == nil {
				value, err = ask(ctx, db, r)
			}
			return err
		})
		return value, err
	}
}

// readWhole reads the body of a POST before anything waits for it.
func readWhole(w http.ResponseWriter, r *http.Request) *failure {
	in := http.NewResponseController(w)
	_ = in.SetReadDeadline(time.Now().Add(bodyTimeout)) // a server without deadlines has another guard
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	_ = in.SetReadDeadline(time.Time{})
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return &failure{http.StatusRequestEntityTooLarge, "", "the body is too long"}
	}
	if err != nil {
		return &failure{http.StatusBadRequest, "", "the body did not come: " + err.Error()}
	}
	if bytes.Contains(body, []byte(`\u0000`)) {
		return &failure{http.StatusBadRequest, "", "the body has a NUL, which is in no name and no key"}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// readBody reads the body of a POST into a struct. Names that the struct lacks are errors.
func readBody(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
			return failureOf(&ratelimit.FieldError{Field: cmp.Or(field, "the body"), Value: "JSON " + kind.Value, Want: kindOfJSON(kind.Type)})
		}
		return &failure{http.StatusBadRequest, "", "the body is not the JSON of this question: " + strings.TrimPrefix(err.Error(), "json: ")}
	}
	return nil
}

// kindOfJSON is what JSON must have for a type, in words.
func kindOfJSON(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// session is what the page needs to know of the server.
func (s *Server) session(r *http.Request) (any, error) {
	session := map[string]any{
		"write": s.options.Write, "who": nil, "token": s.token, "version": s.options.Version, "database": s.database, "started": s.started.UTC(),
	}
	if who := s.who(r); who != "" {
		session["who"] = who
	}
	return session, nil
}

// who is the name of the person that a request is of, if the server knows it.
func (s *Server) who(r *http.Request) string {
	if s.options.Who == nil {
		return ""
	}
	return s.options.Who(r)
}

func listBans(ctx context.Context, db *admin.Database) (any, error) {
	bans, err := db.Bans(ctx)
	return banList(bans), err
}

// count reads how many rows are wanted.
func count(r *http.Request, unset, most int) (int, error) {
	text := r.URL.Query().Get("n")
	if text == "" {
		return unset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, &ratelimit.FieldError{Field: "n", Value: text, Want: fmt.Sprintf("a number from 1 to %d", most)}
	}
	return n, nil
}

// period reads since and until.
func period(ctx context.Context, db *admin.Database, r *http.Request, unset string) (admin.Period, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return admin.Period{}, err
	}
	since := r.URL.Query().Get("since")
	if since == "" {
		since = unset
	}
	p, err := admin.ParsePeriod(since, r.URL.Query().Get("until"), now)
	return p, err
}

func listChanges(ctx context.Context, db *admin.Database, r *http.Request) (any, error) {
	p, err := period(ctx, db, r, "24h")
	if err != nil {
		return nil, err
	}
	most, err := count(r, 100, 1000)
	if err != nil {
		return nil, err
	}
	changes, err := db.Changes(ctx, p.Until.Sub(p.From), most)
	return map[string]any{"changes": changeList(changes)}, err
}

// topSince is the section top for a period, from the history.
func topSince(ctx context.Context, db *admin.Database, r *http.Request) (any, error) {
	p, err := period(ctx, db, r, "1h")
	if err != nil {
		return nil, err
	}
	most, err := count(r, mostTop, 100)
	if err != nil {
		return nil, err
	}
	var remark *string
	if full := p.Full(); full.From.Add(2 * time.Minute).Before(p.Until) {
		p = full
	} else { // there would be next to nothing
		p.From = p.From.Truncate(time.Minute)
		text := "The counts are those of full minutes, so these begin before the time that was chosen."
		remark = &text
	}
	t := topSection{Remark: remark, From: &p.From, Exact: true, Asking: []topName{}, Keys: []topName{}, Users: []topName{}, Addresses: []topName{}, Rules: []topName{}}
	rules, sums, err := db.TopRules(ctx, p, most)
	if err != nil {
		return nil, err
	}
	t.Requests, t.Refused, t.Failed = sums.Requests, sums.Refused, sums.Failed
	users, err := db.TopUsers(ctx, p, most)
	if err != nil {
		return nil, err
	}
	addresses, err := db.TopAddresses(ctx, p, most)
	if err != nil {
		return nil, err
	}
	// The keys with the most requests are among those of many more senders than are shown.
	senders, err := db.TopSince(ctx, p, "", 20*most)
	if err != nil {
		return nil, err
	}
	var keys, senderUsers topSums
	allowed := false
	for _, sender := range senders {
		if sender.User != nil {
			senderUsers.add([]shownName{{"", *sender.User, sender.Requests, sender.Refused, 0}})
		}
		if sender.Key == nil {
			continue
		}
		allowed = allowed || sender.Requests > sender.Refused
		keys.add([]shownName{{sender.Prefix, *sender.Key, sender.Requests, sender.Refused, 0}})
	}
	t.Asking = askingMost(&keys, &senderUsers, most)
	t.Keys = keys.most(func(n topName) int64 { return n.Refused }, most)
	for i, names := range [][]admin.Name{users, addresses, rules} {
		to := []*[]topName{&t.Users, &t.Addresses, &t.Rules}[i]
		for _, n := range names {
			*to = append(*to, topName{Name: n})
		}
	}
	if !allowed && sums.Requests > sums.Refused {
		text := "The audit log has refusals only (audit denied), so the requests of keys, users and addresses are those that were refused."
		t.Remark = &text
	}
	return t, nil
}

func usageOfUser(ctx context.Context, db *admin.Database, r *http.Request) (any, error) {
	user := r.URL.Query().Get("user")
	if user == "" {
		return nil, &ratelimit.FieldError{Field: "user", Want: "the name of a user"}
	}
	p, err := admin.ParseMonth("month", r.URL.Query().Get("month"), time.Now())
	if err != nil {
		return nil, err
	}
	return db.UsageOf(ctx, user, p)
}

// mostNames is how many names are suggested.
const mostNames = 20

func listNames(ctx context.Context, db *admin.Database, r *http.Request) (any, error) {
	kind, begins := r.URL.Query().Get("kind"), r.URL.Query().Get("begins")
	var names []string
	var err error
	switch kind {
	case "user":
		names, err = db.UserNames(ctx, begins, mostNames)
	case "rule":
		names, err = db.RuleNames(ctx)
	case "tier":
		names, err = db.TierNames(ctx)
	default:
		return nil, &ratelimit.FieldError{Field: "kind", Value: kind, Want: "user, rule or tier"}
	}
	found := []string{}
	for _, name := range names {
		if strings.HasPrefix(name, begins) && len(found) < mostNames {
			found = append(found, name)
		}
	}
	return map[string]any{"names": found}, err
}

func counters(ctx context.Context, db *admin.Database, r *http.Request) (any, error) {
	var body struct {
		Prefix string `json:"prefix"`
		Key    string `json:"key"`
	}
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	found, err := db.Counters(ctx, body.Prefix, body.Key)
	return map[string]any{"counters": found}, err
}

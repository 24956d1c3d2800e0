package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
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

// question answers requests.
type question struct {
	method string
	answer func(s *Server, r *http.Request) (any, error)
}

// asking is a question with the fields of F.
func asking[F any](method string, answer func(ctx context.Context, s *Server, f *F) (any, error)) *question {
	return &question{method, func(s *Server, r *http.Request) (any, error) {
		var fields F
		if err := readFields(r, &fields); err != nil {
			return nil, err
		}
		return answer(r.Context(), s, &fields)
	}}
}

// askingOf is a question to the database of a dataset.
func askingOf[F any](method string, of dataset, answer func(ctx context.Context, db *admin.Database, f *F) (any, error)) *question {
	return asking(method, func(ctx context.Context, s *Server, f *F) (value any, err error) {
		err = s.ask(ctx, of, func(ctx context.Context, db *admin.Database) (err error) {
			value, err = answer(ctx, db, f)
			return err
		})
		return value, err
	})
}

// sectionOf is a section of the page as a question.
func sectionOf(name string) *question {
	return asking(http.MethodGet, func(ctx context.Context, s *Server, _ *struct{}) (any, error) { return s.section(ctx, name) })
}

// questions by their names.
var questions = map[string]*question{
	"session": asking(http.MethodGet, func(_ context.Context, s *Server, _ *struct{}) (any, error) { return s.session(), nil }),
	"state": asking(http.MethodGet, func(ctx context.Context, s *Server, _ *struct{}) (any, error) {
		return json.RawMessage(s.state(ctx)), nil
	}),
	"proxies": sectionOf("proxies"), "near": sectionOf("near"),
	"bans":     askingOf(http.MethodGet, ofPolicy, listBans),
	"changes":  askingOf(http.MethodGet, ofPolicy, listChanges),
	"top":      asking(http.MethodGet, top),
	"usage":    askingOf(http.MethodGet, ofHistory, usageOfUser),
	"why":      asking(http.MethodPost, why),
	"explain":  askingOf(http.MethodPost, ofPolicy, explain),
	"counters": askingOf(http.MethodPost, ofCounters, counters),
}

// ask runs something on a connection to the database of a dataset, which nobody else uses meanwhile.
func (s *Server) ask(ctx context.Context, of dataset, do func(ctx context.Context, db *admin.Database) error) error {
	within, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-within.Done():
		return &downError{fmt.Errorf("too many questions at the same time: %w", within.Err())}
	}
	return s.pools.ask(within, of, do)
}

// serveAPI answers a question.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	value, err := s.answer(w, r, name)
	if err != nil {
		failureOf(err).write(w)
		return
	}
	if text, isText := value.(json.RawMessage); isText { // it hides API keys already
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
		return
	}
	writeJSON(w, http.StatusOK, value)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, name string) (any, error) {
	if strings.Contains(name, "\x00") || strings.Contains(r.URL.RawQuery, "%00") {
		return nil, &failure{http.StatusBadRequest, "", "the address has a NUL (%00), which is in no name and no key"}
	}
	q := questions[name]
	if q == nil {
		return nil, &failure{http.StatusNotFound, "", "there is no such question: " + name}
	}
	if method := r.Method; method != q.method && (method != http.MethodHead || q.method != http.MethodGet) {
		w.Header().Set("Allow", q.method)
		return nil, &failure{http.StatusMethodNotAllowed, "", fmt.Sprintf("the method of %s must be %s", name, q.method)}
	}
	if q.method == http.MethodPost {
		if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
			return nil, &failure{http.StatusUnsupportedMediaType, "", "the body must be application/json"}
		}
		if err := readWhole(w, r); err != nil {
			return nil, err
		}
	}
	return q.answer(s, r)
}

// readWhole reads the body of a POST before anything waits for it.
func readWhole(w http.ResponseWriter, r *http.Request) error {
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

// fieldsOf are the names that a struct has in JSON.
func fieldsOf(t reflect.Type) (names []string) {
	for _, field := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// readFields reads the query of a GET, or the body of a POST, into a struct.
func readFields(r *http.Request, into any) error {
	if r.Method == http.MethodPost {
		return readJSON(r.Body, into)
	}
	values := map[string]string{}
	for name, all := range r.URL.Query() {
		values[name] = all[0]
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return readJSON(bytes.NewReader(text), into)
}

// readJSON reads JSON into a struct. Names that the struct lacks are errors.
func readJSON(from io.Reader, into any) error {
	decoder := json.NewDecoder(from)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		return nil
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		if field == "" {
			field = "the body"
		}
		return &ratelimit.FieldError{Field: field, Value: "JSON " + kind.Value, Want: kindsOfJSON[kind.Type.Kind()]}
	}
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		want := "left out: there are no fields here"
		if fields := fieldsOf(reflect.TypeOf(into).Elem()); len(fields) > 0 {
			want = "one of the fields " + strings.Join(fields, ", ")
		}
		return &failure{http.StatusBadRequest, strings.Trim(name, `"`), "the field " + name + ": must be " + want}
	}
	return &failure{http.StatusBadRequest, "", "the body is not the JSON of this question: " + strings.TrimPrefix(err.Error(), "json: ")}
}

// kindsOfJSON are what JSON must have for a type, in words.
var kindsOfJSON = map[reflect.Kind]string{
	reflect.String: "text", reflect.Int64: "a whole number", reflect.Float64: "a number", reflect.Slice: "a list",
	reflect.Struct: "an object", reflect.Map: "an object",
}

// session is what the page needs to know of the server.
func (s *Server) session() map[string]any {
	return map[string]any{"version": s.options.Version, "database": s.database, "started": s.started.UTC()}
}

package traefikplugin

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// countedBody counts how often it is read.
type countedBody struct {
	io.Reader
	reads int
}

func (b *countedBody) Read(part []byte) (int, error) {
	b.reads++
	return b.Reader.Read(part)
}

// post sends a POST with a body and pairs of headers.
func post(h http.Handler, path string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, body)
	r.ContentLength = -1
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// What refuses a request with any body refuses it before the body is read: a ban, a block, an API key that is
// not valid, and a limit that is known to be used up.
func TestRefusedBodiesAreNotRead(t *testing.T) {
	key, insert := policytest.NewKey(t, 7, "alice")
	other, insertOther := policytest.NewKey(t, 8, "bob")
	dsn := policytest.Open(t, policytest.People+insert+insertOther+`
		SELECT rate_limit_rule('plan', limits => '{tpm=1000 tokens/1h}', count_by => '{user}');
		SELECT rate_limit_rule('none', action => 'block', paths => '{/v1/batches}');
		INSERT INTO rate_limit_bans (user_id) VALUES ('bob');`)
	h := policyMiddleware(t, dsn, func(*Config) {})
	send := func(path, key string) string {
		body := &countedBody{Reader: strings.NewReader(`{"max_tokens":5000}`)}
		w := post(h, path, body, "Authorization", "Bearer "+key)
		return fmt.Sprint(w.Code, " after ", min(body.reads, 1), " reads")
	}
	check.Equal(t, "a request", send("/", key), "200 after 1 reads")
	check.Equal(t, "an unknown key", send("/", "rl_unknown"), "401 after 0 reads")
	check.Equal(t, "a ban", send("/", other), "403 after 0 reads")
	check.Equal(t, "a block", send("/v1/batches", key), "403 after 0 reads")
	check.Equal(t, "a used-up limit", send("/", key), "429 after 1 reads")
	check.Equal(t, "a limit that is known to be used up", send("/", key), "429 after 0 reads")
}

// Slow uploads, however many, delay no other request, and each is decided when it is complete.
func TestSlowUploadsDelayNobody(t *testing.T) {
	c := validConfig(Settings{"dsn": policytest.Open(t, ""), "prefix": "p", "key": "k", "timeout": "10s",
		"limit": "100000000 1h", "algorithm": "fixed_window", "unit": "tokens", "onError": "deny"})
	h := newMiddleware(t, t.Context(), newProcess(time.Millisecond), &passCounter{}, c)
	body, sender := io.Pipe()
	var started, ended sync.WaitGroup
	started.Add(maxPending + 1)
	for range maxPending + 1 {
		ended.Go(func() {
			beginning := &signal{done: started.Done}
			w := post(h, "/", io.MultiReader(beginning, body, strings.NewReader(`{"max_tokens":1}`)))
			if w.Code != http.StatusOK {
				t.Errorf("a slow upload: status %d, want 200", w.Code)
			}
		})
	}
	started.Wait()
	for range 3 {
		if w := post(h, "/", strings.NewReader("{}")); w.Code != http.StatusOK {
			t.Errorf("a request beside slow uploads: status %d, want 200", w.Code)
		}
	}
	_ = sender.Close()
	ended.Wait()
	if free := len(h.requests.free); free > maxPending || free < minFree {
		t.Errorf("%d free requests after all uploads, want at most %d", free, maxPending)
	}
}

// signal is an empty body that calls done when it is read.
type signal struct {
	once sync.Once
	done func()
}

func (s *signal) Read([]byte) (int, error) {
	s.once.Do(s.done)
	return 0, io.EOF
}

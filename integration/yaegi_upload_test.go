package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// upload sends a POST with a body to a handler, and returns the status and the response.
func upload(h http.Handler, body io.Reader, length int64) string {
	r := httptest.NewRequest(http.MethodPost, "http://example.com/v1/chat/completions", body)
	r.ContentLength = length
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return fmt.Sprint(w.Code, " ", w.Body.String())
}

// echo responds with the length of a request, its body, and what is left of the tokens.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	left := w.Header().Get("X-RateLimit-Remaining-Tokens")
	body, err := io.ReadAll(r.Body)
	closed := r.Body.Close()
	_, _ = fmt.Fprint(w, left, " ", r.ContentLength, " ", string(body[:min(len(body), 30)]), err, closed)
})

// The interpreted plugin reads bodies as compiled code does, and passes them on unchanged.
func TestInterpretedPluginReadsBodies(t *testing.T) {
	h := loadPlugin(t).mustHandler(t, echo, decideAlways(object{"dsn": cluster.Open(t), "prefix": "p",
		"key": "k", "limit": "100000000 1h", "algorithm": "fixed_window", "unit": "tokens",
		"maxBody": "100KB"}))
	refused := func(status int, text string) string {
		return fmt.Sprintf(`%d {"type":"error","error":{"message":%q,"type":"invalid_request_error",`+
			`"code":"invalid_request","param":null}}`, status, text)
	}
	long := strings.Repeat("x", 100<<10)
	for _, c := range []struct{ body, want string }{
		{`{"max_tokens":96,"n":10}`, `200 99999034 %d {"max_tokens":96,"n":10}<nil> <nil>`},
		{"", `200 99994938 %d <nil> <nil>`},
		{long, `200 99965242 %d ` + long[:30] + `<nil> <nil>`},
		{long + "x", refused(413, "Body too long")},
		{`{"n":1,"N":2}`, refused(400, "Ambiguous body")},
		{`{"background":true}`, refused(400, "No answer in the background possible")},
	} {
		want := strings.Replace(c.want, "%d", fmt.Sprint(len(c.body)), 1)
		got := upload(h, strings.NewReader(c.body), int64(len(c.body)))
		check.Equal(t, fmt.Sprintf("%.30s", c.body), got, want)
	}
	check.Equal(t, "a broken body", upload(h, iotest.ErrReader(io.ErrUnexpectedEOF), 5),
		refused(408, "Incomplete body"))
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			if got := upload(h, iotest.OneByteReader(strings.NewReader(`{"n":1}`)), -1); got[:3] != "200" ||
				!strings.HasSuffix(got, ` -1 {"n":1}<nil> <nil>`) {
				t.Errorf("a body in parts: got %s", got)
			}
		})
	}
	running.Wait()
}

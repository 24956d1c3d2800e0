package page_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
)

// Without scripts the fields keep what was asked, but no API key.
func TestTheFieldsKeepTheQuestion(t *testing.T) {
	s, err := page.New(page.Options{DSN: ask(t).dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	const key = "prl_0123456789abcdefghij"
	for form, want := range map[string]string{
		"who=ann&at=14:05&kind=user": `value="ann"`, "at=14:05&who=": `value="14:05"`, "who=ann&at=25:00": `value="25:00"`,
		"who=ann&kind=counter": `value="counter" selected`, "who=" + key: `name="who" required`,
		"who=ann&at=14:05&who=bob": `maxlength="40" value=""`,
	} {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/", strings.NewReader(form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if text := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(text, want) || strings.Contains(text, key[:12]) {
			t.Errorf("%s: status %d, want 200 and a page with %s", form, w.Code, want)
		}
	}
}

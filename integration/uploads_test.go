package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// startUploads starts both proxies with a limit of tokens for each user, in front of an upstream that reads
// bodies, and compares them with the header X-Body if there is one.
func startUploads(t *testing.T) []proxy {
	t.Helper()
	upstream := harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		into := io.Discard
		if r.Header.Get("X-Body") != "" {
			into = &text
		}
		n, err := io.Copy(into, r.Body)
		if err != nil || n != r.ContentLength || text.String() != r.Header.Get("X-Body") {
			t.Errorf("the upstream gets %d bytes of %d, %q, %v", n, r.ContentLength, text.String(), err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, usageBody, 1, 1)
	})
	return startBoth(t, cluster.Open(t), route{path: "/", backend: upstream, limit: decideAlways(object{
		"policy": object{"user": "{header.X-User}"}, "zones": []object{{"prefix": "PROXY", "key": "all",
			"limit": "1000000000000 1h", "algorithm": "fixed_window", "unit": "tokens"}}})})
}

// A thousand users upload 8 MB each at once. The proxy holds 256 MB of them, and refuses the others. After
// that, a small request passes. GOMEMLIMIT bounds what waits for a collection on a busy machine.
func TestUploadsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	body := []byte(`{"max_tokens":1,"messages":"`)
	body = append(body, bytes.Repeat([]byte("x"), 8<<20-len(body)-2)...)
	body = append(body, `"}`...)
	t.Setenv("GOMEMLIMIT", "1GiB")
	for _, p := range startUploads(t) {
		before := peakMemory(p.PID())
		client := &http.Client{Transport: &http.Transport{}} // without a timeout
		send := func(user string, body []byte) int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return 0
			}
			r.Header.Set("X-User", user)
			response, err := client.Do(r)
			if err != nil {
				return 0 // the proxy has refused it and closed the connection before it was sent
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			return response.StatusCode
		}
		var uploads sync.WaitGroup
		var statuses [600]atomic.Int32
		for i := range 1000 {
			uploads.Go(func() { statuses[send(fmt.Sprint("user", i), body)].Add(1) })
		}
		uploads.Wait()
		check.Equal(t, p.url+": the status of a small request", send("small", []byte("{}")), http.StatusOK)
		client.CloseIdleConnections()
		passed, refused, cut := statuses[200].Load(), statuses[503].Load(), statuses[0].Load()
		grown := peakMemory(p.PID()) - before
		if passed == 0 || refused+cut == 0 || passed+refused+cut != 1000 || grown > 6*256<<20 {
			t.Errorf("%s: %d uploads passed, %d were refused, %d were cut, and the memory has grown by %d MB",
				p.url, passed, refused, cut, grown>>20)
		}
	}
}

// Each of many prompts at once, which a proxy reads together, reaches the upstream with its own body.
func TestPromptsKeepTheirBodies(t *testing.T) {
	for _, p := range startUploads(t) {
		var prompts sync.WaitGroup
		for i := range 200 {
			prompts.Go(func() {
				body := fmt.Sprintf(`{"max_tokens":1,"user":"%d"}`, i)
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url,
					strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-User", "user")
				r.Header.Set("X-Body", body)
				response, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				check.Equal(t, p.url, response.StatusCode, http.StatusOK)
				_ = response.Body.Close()
			})
		}
		prompts.Wait()
	}
}

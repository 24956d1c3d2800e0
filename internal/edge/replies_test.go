package edge

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestRepliesAreAnswers: many replies at once are what SetHeaders and Refuse
// write for each.
func TestRepliesAreAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SampledFrom([]int64{0, 1, 9, 99, 1_000_000, 1 << 62})
		waits := rapid.SampledFrom([]time.Duration{ratelimit.Never, time.Microsecond, time.Second, time.Second + 1, time.Hour, 1<<63 - 1})
		resets := rapid.SampledFrom([]time.Time{time.Unix(1_700_000_000, 0), time.Unix(1_700_000_000, 1000), time.Unix(1_700_000_001, 0), time.UnixMicro(1 << 60)})
		var replies []Reply
		for range rapid.IntRange(0, 6).Draw(t, "replies") {
			d := &ratelimit.Decision{Allowed: rapid.Bool().Draw(t, "allowed"), Limit: numbers.Draw(t, "limit"),
				Remaining: numbers.Draw(t, "remaining"), Reset: resets.Draw(t, "reset")}
			if !d.Allowed {
				d.RetryAfter = waits.Draw(t, "wait")
			}
			replies = append(replies, Reply{Header: http.Header{}, Decision: d})
		}
		SetAllHeaders(replies)
		for i, r := range replies {
			answer := AnswerOf([]ratelimit.Decision{*r.Decision})
			want := httptest.NewRecorder()
			SetHeaders(want.Header(), &answer)
			if answer.Status != 0 {
				answer.Refuse(want)
			}
			if !reflect.DeepEqual(r.Header, want.Header()) || r.Body != want.Body.String() {
				t.Fatalf("reply %d to %+v is %v %q, want %v %q", i, r.Decision, r.Header, r.Body, want.Header(), want.Body)
			}
			r.Header.Add("X-Ratelimit-Limit", "more")
		}
		for i, r := range replies {
			if got := r.Header.Get("X-Ratelimit-Remaining"); got == "more" {
				t.Fatalf("reply %d: what was added to one header is in another", i)
			}
		}
	})
}

package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// markup is a name that would load a picture and run a script, if the page took it for HTML.
const markup = `<img src=x onerror=alert(1)><b>`

// moneySQL adds prices, a notice, and the costs of today of 60 people below an organization and a team, and
// of an unknown sender, with corrections that add up to 0.
const moneySQL = `UPDATE rate_limit_ledger_retention SET currency = 'EUR';
	SELECT rate_limit_price('gpt-4o*', 2.5, 10, parts => '{audio_input=40}', tiers => '{flex=0.5}');
	INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
		VALUES ('plan', 'month', 'orbit', now(), 80, 40.25, 50);
	INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, price, input, money,
			search, estimated_input, estimated_money, charges)
		SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), u, a, m, 'gpt-4o*', 1, c, s, e, e,
			'[]'
		FROM (SELECT 'p' || i AS u, '{blue,orbit}'::text[] AS a, 'gpt-4o' AS m, i * 1000000 AS c,
				1 AS s, NULL::bigint AS e FROM generate_series(1, 60) i
			UNION ALL VALUES ('%[1]s', '{"%[1]s-team",orbit}'::text[], '%[1]s', NULL::bigint, NULL::bigint,
				NULL::bigint),
				(NULL, '{}', 'gpt-4o', 100500000, NULL, 500000)) v(u, a, m, c, s, e);
	INSERT INTO rate_limit_ledger (day, id, time, model, money, charges, kind, corrects, corrects_time,
			corrected_by, reason)
		SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'gpt-4o', i %% 2 * 2 - 1, '[]',
			'correction', gen_random_uuid(), '2026-10-31', '%[1]s', '%[1]s-why' || i
		FROM generate_series(1, 60) i`

// The page shows what was spent, by whom and on which model, with names as they are, and what has no price.
// It is accessible, and not wider than the window, in light and dark.
func TestThePageShowsWhatWasSpent(t *testing.T) {
	dsn := cluster.Open(t, schema.File, fmt.Sprintf(moneySQL, markup))
	b := openPage(t, dsn, dsn)
	b.await("#money-list dl", "1,930.50 EUR")
	text := b.text("#money-list")
	for _, want := range []string{"This month has 0.50 EUR of estimates",
		"requests of this month: " + markup + " (1).", "orbit", "blue", markup + "-team", "p60", "12 other",
		"unknown"} {
		if !strings.Contains(text, want) {
			t.Errorf("the money shows %q, want also %q", text, want)
		}
	}
	b.await("#state-more", `The price "gpt-4o*" has charged search without a price of its own`)
	b.await("#prices-list", "audio_input=40, flex=0.5")
	b.await("#notices-list", "40.25 of 50")
	b.await("#corrections-list", markup+"-why")
	b.await("#corrections-list", "2026-10")
	b.await("#corrections-list", "and 10 more")
	for name, look := range map[string]struct {
		size
		scheme string
	}{"light": {desktop, "light"}, "dark": {desktop, "dark"}, "phone": {phone, "light"}} {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}
		if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: features}); err != nil {
			t.Fatal(err)
		}
		b.do(chromedp.EmulateViewport(look.width, look.height))
		for _, found := range b.auditAccessibility() {
			t.Error(name, found)
		}
		if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > look.width {
			t.Errorf("%s: the page is %d pixels wide, want %d at most", name, wide, look.width)
		}
	}
}

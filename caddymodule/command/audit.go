package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// times are the flags of a period of the history.
type times struct{ since, until string }

func (p *times) flags(cmd *cobra.Command, since, what string) {
	cmd.Flags().StringVar(&p.since, "since", since, what+" since then: 30m, 24h or 7d before now, or a time such as 2026-11-27T18:00:00Z")
	cmd.Flags().StringVar(&p.until, "until", "", what+" before then, in the same forms (default now)")
}

// errNoSince is for --until alone, with a command that works without --since.
var errNoSince = &ratelimit.FieldError{Field: "--since", Want: "given with --until"}

// period is the period by the clock of the server.
func (p *times) period(c *call) (admin.Period, error) {
	now, err := c.db.Now(c.ctx)
	if err != nil {
		return admin.Period{}, err
	}
	return admin.ParsePeriod(p.since, p.until, now)
}

// recording says which requests the audit log has.
const recording = `The audit log has what the configurations of the proxies say: with "audit denied", the
default of a configuration with "history", only what was refused.`

// noneRecorded is printed instead of a list of what the audit log has.
func noneRecorded(what string, p admin.Period) string {
	return "No such " + what + " is in the audit log from " + moment(p.From) + " until " + moment(p.Until) + ".\n" + recording
}

// auditFlags are the flags of audit.
type auditFlags struct {
	admin.AuditQuery
	times
	rule, decision, address string
	most                    number
	follow                  bool
}

func (f *auditFlags) query(c *call) (*admin.AuditQuery, error) {
	q := f.AuditQuery
	if f.rule != "" {
		q.Prefix = "rule/" + f.rule
	}
	if q.KeyID < 0 {
		return nil, &ratelimit.FieldError{Field: "--key-id", Value: cell(q.KeyID), Want: "the number of a key, as in: caddy pg-ratelimit keys list"}
	}
	if err := f.most.check(); err != nil {
		return nil, err
	}
	q.Most = int(f.most)
	var err error
	if q.Decisions, err = admin.ParseDecisions("--decision", f.decision); err != nil {
		return nil, err
	}
	if f.address != "" {
		if q.Address, err = admin.ParseNetwork("--address", f.address); err != nil {
			return nil, err
		}
	}
	q.Period, err = f.period(c)
	return &q, err
}

func auditCommand(t *tool) *cobra.Command {
	f := auditFlags{most: 50}
	cmd := &cobra.Command{
		Use:   "audit [-f] [--user USER] [--rule RULE | --prefix PREFIX] [--decision limited] [--since 1h]",
		Short: "Lists what happened to requests, the newest first",
		Long: `Lists rows of the audit log, the newest first: of the last hour, unless --since says
otherwise. Flags that are given together must all hold. A row with a count above 1 stands for
as many equal refusals within a second. LIMIT is the limit that refused the request, or the one
with the least left.

With -f the newest is the last, and what proxies write from then on follows until Ctrl-C: with
--json, one object a line.

` + recording,
		Example: `  caddy pg-ratelimit audit
  caddy pg-ratelimit audit -f --rule free
  caddy pg-ratelimit audit --user acme --decision limited --since 24h
  caddy pg-ratelimit audit --rule free --address 192.0.2.0/24 -n 200
  caddy pg-ratelimit audit --prefix web --host api.example.com --since 2026-11-27 --until 2026-11-28 --json`,
		RunE: t.at(ofHistory, func(c *call) error {
			q, err := f.query(c)
			if err != nil {
				return err
			}
			if f.follow {
				return c.follow(q)
			}
			found, err := c.db.Audit(c.ctx, q)
			hideInAll(found)
			return showList(c, found, err, auditRow, noneRecorded("decision", q.Period))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.User, "user", "", "of this user")
	flags.Int64Var(&f.KeyID, "key-id", 0, "with the API key of this number")
	flags.StringVar(&f.Prefix, "prefix", "", "by the limit of this prefix in a configuration, or by rule/RULE or rule/RULE/LIMIT")
	flags.StringVar(&f.rule, "rule", "", "by this rule")
	flags.StringVar(&f.decision, "decision", "", "one or more of "+strings.Join(admin.Decisions(), ", ")+", with commas between them")
	flags.StringVar(&f.address, "address", "", "from this address or network")
	flags.StringVar(&f.Host, "host", "", "to this host")
	flags.StringVar(&f.Node, "node", "", "decided by this proxy")
	f.flags(cmd, "1h", "decided")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with new rows, until Ctrl-C")
	cmd.MarkFlagsMutuallyExclusive("follow", "until")
	f.most.flag(cmd)
	cmd.MarkFlagsMutuallyExclusive("prefix", "rule")
	t.mayComplete(cmd, "user", t.completeOne(userNames))
	t.mayComplete(cmd, "rule", t.completeOne(ruleNames))
	t.mayComplete(cmd, "prefix", t.completeOne(prefixes))
	t.mayComplete(cmd, "decision", func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return beginning(admin.Decisions(), begun), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// hideInAll hides the API keys in rows.
func hideInAll(all []admin.Audited) {
	for i := range all {
		hideIn(all[i].Key, all[i].User, all[i].Host, all[i].Path)
	}
}

// hideIn hides the API keys in texts. A client may have put one into a wrong place.
func hideIn(texts ...*string) {
	for _, text := range texts {
		if text != nil {
			*text = hideKeys(*text)
		}
	}
}

func auditRow(a *admin.Audited) row {
	limit, request, left := a.Prefix, none, none
	if a.Limit != nil {
		limit += "/" + *a.Limit
	}
	if a.Method != nil || a.Host != nil || a.Path != nil {
		request = strings.TrimSpace(or(a.Method, "") + " " + or(a.Host, "") + or(a.Path, ""))
	}
	if a.Quota != nil && a.Remaining != nil {
		left = fmt.Sprintf("%d of %d", *a.Remaining, *a.Quota)
	}
	return row{
		"TIME", a.Time, "DECISION", a.Decision, "REASON", a.Reason, "LIMIT", limit, "KEY", a.Key, "USER", a.User, "ADDRESS", a.Address,
		"REQUEST", request, "STATUS", a.Status, "COUNT", counted(a.Count, a.Weight), "LEFT", left, "NODE", a.Node,
	}
}

// counted is how many requests a row stands for: "about" if it is of a sample.
func counted(count int64, weight float64) string {
	if weight == 1 {
		return cell(count)
	}
	return "about " + cell(int64(float64(count)*weight+0.5))
}

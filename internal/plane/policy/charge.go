package policy

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// charge adds to the hits the amounts that hold for the sender at a time, drops those without an amount, and
// moves those of shadow rules to the end, apart. A limit that lets nothing pass refuses the request.
func charge(sender *amounts, at int64, o *Verdict) {
	simple := true
	kept := 0
	var shadows []ratelimit.Hit
	var marks []*Mark // of shadows
	for i, l := range o.limits {
		a := l.own
		if l.tiers != nil || sender.adjusts {
			a = amountFor(l, sender, at, o)
		}
		if a.unlimited {
			continue
		}
		if a.none {
			if a.mark.Shadow {
				o.Would = append(o.Would, a.mark)
				continue
			}
			refuse(o, NoQuota, a.mark)
			return
		}
		if a.mark.Shadow {
			hit := o.Hits[i]
			hit.Limit = a.limit
			hit.Apart = true
			shadows = append(shadows, hit)
			marks = append(marks, a.mark)
			continue
		}
		if kept < i {
			o.Hits[kept] = o.Hits[i]
		}
		o.Hits[kept].Limit = a.limit
		kept++
		o.Marks = append(o.Marks, a.mark)
		simple = simple && a.mark.simple
	}
	o.Hits = o.Hits[:kept]
	if marks != nil {
		o.Hits = append(o.Hits, shadows...)
		o.Marks = append(o.Marks, marks...)
	}
	o.Simple = simple && kept > 0 && marks == nil
}

package edge

import "strings"

// Among says that a name must be one of those that are known, and which of them it may be a
// misspelling of.
func Among(name string, known []string) string {
	return "one of " + strings.Join(known, ", ") + DidYouMean(name, known)
}

// DidYouMean is a question with the name that another one may be a misspelling of; "" if no name is
// close.
func DidYouMean(name string, known []string) string {
	name = plain(name)
	best := ""
	least := (len(name)+2)/4 + 1 // a quarter of the letters may be wrong
	for _, k := range known {
		if d := distance(name, plain(k)); d < least {
			best = k
			least = d
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}

// plain is a name without what people confuse most often.
func plain(name string) string { return strings.ToLower(strings.Replace(name, "-", "_", -1)) }

// distance is how many letters are to be inserted, removed, changed or swapped with the next one to
// make b of a. A text that is too long for a name is far from all.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	var before, last []int // the rows of the table before row i
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before = last
		last = row
		row = make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := last[j-1] + change
			d = smaller(d, smaller(last[j], row[j-1])+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = smaller(d, before[j-2]+1)
			}
			row[j] = d
		}
	}
	return row[len(b)]
}

func smaller(a, b int) int {
	if a < b {
		return a
	}
	return b
}

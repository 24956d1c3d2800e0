package policyfile

import (
	"fmt"
	"strings"
)

// unknownField is the error about a field that a row or a file cannot have.
func unknownField(name string, known []string) error {
	best, distance := "", 3 // a name with more differences is another name
	for _, k := range known {
		if d := differences(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Errorf("%s: unknown: did you mean %s?", name, best)
	}
	return fmt.Errorf("%s: unknown: must be one of %s", name, strings.Join(known, ", "))
}

// differences is how many letters must be added, left out or replaced to make one name of the other.
func differences(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

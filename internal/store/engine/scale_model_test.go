package engine_test

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// What TestScaleModel computes with. The costs of a statement and of a row are those that TestCitusCost and make bench
// measured, on the processors of the server.
const (
	modelRate   = 1e6    // decisions a second, of all proxies together
	modelPlain  = 30e-6  // seconds of a processor for a statement
	modelInPart = 55e-6  // likewise in a part, with the guard
	modelRow    = 4.1e-6 // likewise for a row
	modelWay    = 0.5e-3 // seconds to the server and back
	modelMost   = 400    // hits in a batch
	modelParts  = "1 4 16 64"
)

// scaleModel is what happens if the decisions come evenly from proxies to parts. Each proxy has a queue for each part,
// with a batch in flight: while a batch is under way, the next one gathers. Returned are the hits in a batch, and the
// processors that the servers of the database need together.
func scaleModel(proxies, parts int) (batch, processors float64) {
	statement := modelInPart
	if parts == 1 {
		statement = modelPlain
	}
	rate := modelRate / float64(proxies*parts) // of a queue
	batch = modelMost
	if busy := rate * modelRow; busy < 1 {
		batch = math.Min(modelMost, math.Max(1, rate*(modelWay+statement)/(1-busy)))
	}
	return batch, modelRate * (modelRow + statement/batch)
}

// The table of processors in docs/scale.md is what the model says.
func TestScaleModel(t *testing.T) {
	table := "| proxies | 1 part | 4 parts | 16 parts | 64 parts |\n|---|---|---|---|---|\n"
	for _, proxies := range []int{1, 10, 100, 1000} {
		name := fmt.Sprint(proxies)
		if proxies == 1000 {
			name = "1,000"
		}
		table += "| " + name
		for _, text := range strings.Fields(modelParts) {
			parts, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			batch, processors := scaleModel(proxies, parts)
			table += fmt.Sprintf(" | %.0f (%.0f)", processors, batch)
		}
		table += " |\n"
	}
	page, err := os.ReadFile("../../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("docs/scale.md has not this table:\n%s", table)
	}
}

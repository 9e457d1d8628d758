package adaptive

// A class is what a policy can know about a block when it is put or read. All blocks of a class are taken to
// have the same chance of being used again at the same age.
//
//	turn    how many requests before had extended the chain that this request extends: 0, 1, 2 or more
//	added   how many new blocks the request brought
//	reuse   how often this block was used before
//	partial the block is not full: the end of a prompt, a class of its own
const (
	turns   = 3
	addeds  = 8
	reuses  = 4
	classes = turns*addeds*reuses + 1
	partial = classes - 1
)

// features of a class, for the main effects of the estimate.
func features(class int) (turn, added, reuse int) {
	return class / (addeds * reuses), class / reuses % addeds, class % reuses
}

func classOf(turn uint8, added uint32, reuse uint8) uint8 {
	return uint8((int(min(turn, turns-1))*addeds+addedBucket(added))*reuses + reuseBucket(reuse))
}

func addedBucket(n uint32) int {
	switch {
	case n <= 2:
		return int(n)
	case n <= 4:
		return 3
	case n <= 8:
		return 4
	case n <= 16:
		return 5
	case n <= 32:
		return 6
	}
	return 7
}

func reuseBucket(n uint8) int {
	switch {
	case n <= 1:
		return int(n)
	case n <= 3:
		return 2
	}
	return 3
}
